"""Make up what a validation and a benchmark found. What a test does not name is as it mostly is."""

from enginewright.core.facts import PYTORCH
from enginewright.measure.records import (
    Agreement,
    Benchmark,
    Contention,
    Errors,
    Interval,
    Latency,
    MachinePace,
    Ratio,
    Result,
    Spread,
    Validation,
)


def accuracy(reference, graph, engine, around=0.01):
    """Return what the fields of a Validation are for an accuracy, or for one that was not measured."""
    about = {"task": "classification", "metric": "accuracy", "lacking": "no labels or no scores"}
    if engine is None:
        return about | {"results": ()}
    drop = reference - engine
    result = Result(
        name="accuracy",
        unit="%",
        higher_is_better=True,
        reference=reference,
        graph=graph,
        engine=engine,
        drop=drop,
        interval=Interval(low=drop - around, high=drop + around),
        samples=512,
        needed=512,
    )
    return about | {"results": (result,)}


def agreed(share, samples=512):
    interval = Interval(low=max(0, share - 0.01), high=min(1, share + 0.01))
    counted = {"among": f"{samples} images", "samples": samples, "needed": samples}
    return Agreement(name="top-1 agreement", share=share, interval=interval, **counted)


def errors_of(relative, cosine=0.999):
    return Errors(max_abs=0.5, mean_abs=0.1, relative=relative, cosine=cosine, worst_cosine=0.9, nonfinite=0)


def validation_of(precision, errors, **changes):
    """Return a validation that found the same errors everywhere."""
    usual = {
        "reference": PYTORCH,
        "samples": 512,
        **accuracy(0.96, 0.95, 0.95),
        "agreement": agreed(0.99),
        "engine_against_pytorch": errors,
        "graph_against_pytorch": errors,
        "engine_against_graph": errors,
        "spots": (),
        "resized": (),
        "loss_comes_from": "precision",
        "broken": (),
        "unsure": (),
        "must_be_sure": False,
        "spread": Spread(shares=(0, 1), relative_error=(1e-6, 1e-6), margin_kept=()),
    }
    return Validation(precision=precision, **(usual | changes))


def latency_of(contender, batch, p50, **changes):
    usual = {
        "runs": 100,
        "p90": 1.1 * p50,
        "p99": 1.5 * p50,
        "compute": None,
        "spread": 0.02,
        "outliers": 0.0,
        "warm_up_drift": 0.0,
        "images_per_second": 1000 * batch / p50,
    }
    return Latency(contender=contender, batch=batch, p50=p50, **(usual | changes))


def ratio_of(batch, median, low, high):
    return Ratio(baseline="eager", batch=batch, rounds=20, median=median, low=low, high=high)


def benchmark_of(precision, latencies, ratios, **changes):
    usual = {
        "threads": 2,
        "cuda_graph": False,
        "confidence": 0.95,
        "pace": MachinePace(microseconds=5.0, rounds=40, set_aside=0),
        "throughput": (),
        "contention": Contention(cores=2, others=0.0, stolen=0.0, throttled=0.0),
        "peak_memory": {},
        "isolated_compute": {},
        "gpu": None,
        "pytorch": "2.15.0",
    }
    return Benchmark(precision=precision, latencies=tuple(latencies), ratios=tuple(ratios), **(usual | changes))

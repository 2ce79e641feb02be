"""Runs with made-up measurements."""

import pytest

from enginewright.measure.records import (
    Benchmark,
    Contention,
    Errors,
    Latency,
    MachinePace,
    Measurement,
    Measurements,
    Ratio,
    Spread,
    Validation,
)
from support.results import accuracy as of_accuracy
from support.results import agreed

BATCHES = (1, 8)


@pytest.fixture(scope="session")
def run(machine):
    """Make up a run of one precision from its ratios to PyTorch and anything else that a test asks for."""

    def make(
        *ratios,
        precision="int8",
        interval=0.01,
        took=(1.0, 1.0),  # how many times as long PyTorch itself took
        accuracy=0.95,
        relative=0.01,
        as_asked=1.0,
        samples=512,
        digest="a",  # of their list
        engine="the engine's identity",
        files=None,
        threads=2,
        pace=5.0,
        others=0.0,
        gpu=None,
        pytorch="2.15.0",
        **of_machine,
    ):
        errors = Errors(
            max_abs=0.5,
            mean_abs=0.1,
            relative=relative,
            cosine=0.999,
            worst_cosine=0.9,
            nonfinite=0,
        )
        validation = Validation(
            precision=precision,
            reference="PyTorch",
            engine=engine,
            samples=samples,
            samples_sha256=digest,
            **of_accuracy(0.96, accuracy, accuracy),
            agreement=agreed(0.99),
            engine_against_pytorch=errors,
            graph_against_pytorch=errors,
            engine_against_graph=errors,
            spots=(),
            resized=(),
            loss_comes_from="precision",
            broken=(),
            unsure=(),
            must_be_sure=False,
            spread=Spread(shares=(), relative_error=(), margin_kept=()),
        )
        benchmark = Benchmark(
            precision=precision,
            threads=threads,
            cuda_graph=False,
            confidence=0.95,
            latencies=tuple(map(eager_latency, BATCHES, took)),
            ratios=tuple(
                Ratio(
                    baseline="eager",
                    batch=batch,
                    rounds=20,
                    median=ratio,
                    low=ratio * (1 - interval),
                    high=ratio * (1 + interval),
                )
                for batch, ratio in zip(BATCHES, ratios, strict=True)
            ),
            pace=MachinePace(microseconds=pace, rounds=40, set_aside=0),
            throughput=(),
            contention=Contention(cores=2, others=others, stolen=0.0, throttled=0.0),
            peak_memory={},
            isolated_compute={},
            gpu=gpu,
            pytorch=pytorch,
        )
        measured = Measurement(
            precision=precision,
            engine_bytes=1,
            files=files or {},
            executed_as_asked=as_asked,
            validation=validation,
            benchmark=benchmark,
        )
        return Measurements(machine=machine.model_copy(update=of_machine), precisions=(measured,))

    return make


def eager_latency(batch, took):
    return Latency(
        contender="eager",
        batch=batch,
        runs=50,
        p50=2.0 * batch * took,
        p90=2.1 * batch * took,
        p99=2.2 * batch * took,
        compute=None,
        spread=0.02,
        outliers=0.0,
        warm_up_drift=0.0,
        images_per_second=500 / took,
    )

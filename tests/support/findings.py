"""Change one thing about made-up evidence."""

from dataclasses import replace
from itertools import combinations

from enginewright.engine.gpu.nvml import GpuConditions
from enginewright.measure.race import EnginesRace, RacedPair
from enginewright.measure.records import LAUNCHED, Interval, MachinePace, PeakMemory, Result
from enginewright.report.page.render import write_summary
from enginewright.report.verdict import failures_of

GPU = GpuConditions(
    samples=20,
    clock_low=2500,
    clock_median=2510,
    clock_high=2520,
    memory_clock=9000,
    power_median=100.0,
    power_high=120.0,
    temperature_high=50,
    throttled={},
)


def race_of(*entries, disturbed=()):
    """Return a race in which engines are as fast as their made-up ratios say at batch 8, or else the largest."""
    every = [one for entry in entries for one in entry.benchmark.latencies]
    batch = 8 if any(one.batch == 8 for one in every) else max(one.batch for one in every)
    baseline = entries[0].benchmark.ratios[0].baseline
    beside = {baseline: (1.0, 1.0, 1.0)} | {entry.precision: _ratio(entry, batch, baseline) for entry in entries}
    taken = {baseline: entries[0].latency(batch, baseline).p50}
    return EnginesRace(
        batch=batch,
        baseline=baseline,
        threads=2,
        confidence=0.95,
        rounds=24,
        milliseconds=taken | {entry.precision: entry.latency(batch).p50 for entry in entries},
        pairs=tuple(
            RacedPair(one=one, other=other, median=a[0] / b[0], low=a[1] / b[2], high=a[2] / b[1])
            for (other, b), (one, a) in combinations(beside.items(), 2)
        ),
        disturbed=disturbed,
    )


def _ratio(entry, batch, baseline):
    found = entry.ratio(batch, baseline)
    return found.median, found.low, found.high


def unlabelled(entry):
    """Return evidence from images without labels."""
    spots = tuple(spot.model_copy(update={"metric": None}) for spot in entry.validation.spots)
    return replace(entry, validation=entry.validation.model_copy(update={"results": (), "spots": spots}))


def of_regression(entry):
    """Return evidence of a task whose metric is a plain number, with another one beside it, and without agreement."""
    about = {"graph": 0.9, "unit": "", "interval": Interval(low=-0.01, high=0.03), "samples": 512, "needed": None}
    r2 = Result(name="R²", higher_is_better=True, reference=0.91, engine=0.9, drop=0.01, **about)
    rmse = Result(name="RMSE", higher_is_better=False, reference=12.5, engine=13, drop=0.5, **about)
    changes = {"task": "regression", "metric": "R²", "results": (r2, rmse), "agreement": None}
    return replace(entry, validation=entry.validation.model_copy(update=changes))


def noisy(entry, latency=None, contention=None, **changes):
    """Return evidence with disturbed timings."""
    benchmark = entry.benchmark
    latencies = tuple(one.model_copy(update=(latency or {}).get(one.contender, {})) for one in benchmark.latencies)
    taken = benchmark.contention.model_copy(update=contention or {})
    disturbed = benchmark.model_copy(update={"latencies": latencies, "contention": taken, **changes})
    return replace(entry, benchmark=disturbed)


def paced(entry, microseconds, set_aside=0):
    pace = MachinePace(microseconds=microseconds, rounds=40, set_aside=set_aside)
    return replace(entry, benchmark=entry.benchmark.model_copy(update={"pace": pace}))


def spread_over(entry, spread, *batches, contender="engine"):
    """Return evidence in which the calls of a contender scatter at these batch sizes."""
    latencies = tuple(
        one.model_copy(update={"spread": spread}) if one.contender == contender and one.batch in batches else one
        for one in entry.benchmark.latencies
    )
    return replace(entry, benchmark=entry.benchmark.model_copy(update={"latencies": latencies}))


def on_gpu(entry, cuda_graph=True, throttled=None):
    """Return evidence from a GPU, with the device's own clock, memory and state."""
    timed = entry.benchmark.latencies
    if cuda_graph:
        engine = [latency for latency in timed if latency.contender == "engine"]
        timed += tuple(one.model_copy(update={"contender": LAUNCHED, "p50": 3 * one.p50}) for one in engine)
    latencies = tuple(latency.model_copy(update={"compute": latency.p50 / 2}) for latency in timed)
    conditions = GPU.model_copy(
        update={
            "clock_low": 1200,
            "clock_median": 1755,
            "clock_high": 1980,
            "memory_clock": 2619,
            "power_median": 412.3,
            "power_high": 688.8,
            "temperature_high": 61,
            "throttled": throttled or {},
        }
    )
    benchmark = entry.benchmark.model_copy(
        update={
            "cuda_graph": cuda_graph,
            "latencies": latencies,
            "peak_memory": {
                "engine": PeakMemory(host=450.4, device=612.3),
                "eager": PeakMemory(host=900.2, device=None),
            },
            "gpu": conditions,
        }
    )
    return replace(entry, benchmark=benchmark)


def steady(entry):
    """Return evidence from a GPU whose clock did not move."""
    gpu = entry.benchmark.gpu.model_copy(update={"clock_low": 1980, "clock_median": 1980})
    return replace(entry, benchmark=entry.benchmark.model_copy(update={"gpu": gpu}))


def by_itself(entry, **milliseconds):
    isolated = {int(batch.removeprefix("batch")): taken for batch, taken in milliseconds.items()}
    return replace(entry, benchmark=entry.benchmark.model_copy(update={"isolated_compute": isolated}))


def raced_twice(entry, other="channels_last"):
    """Return evidence with another baseline, as fast as the first."""
    benchmark = entry.benchmark
    again = [one.model_copy(update={"contender": other}) for one in benchmark.latencies if one.contender == "eager"]
    ratios = tuple(one.model_copy(update={"baseline": other}) for one in benchmark.ratios)
    changes = {"latencies": (*benchmark.latencies, *again), "ratios": benchmark.ratios + ratios}
    return replace(entry, benchmark=benchmark.model_copy(update=changes))


def taking(entry, contender, milliseconds):
    """Return evidence with these medians of a contender, by batch size."""
    latencies = tuple(
        one.model_copy(update={"p50": milliseconds[one.batch]}) if one.contender == contender else one
        for one in entry.benchmark.latencies
    )
    return replace(entry, benchmark=entry.benchmark.model_copy(update={"latencies": latencies}))


def summary_of(found, **must_pay):
    return write_summary(replace(found, failures=failures_of(found, must_pay)))

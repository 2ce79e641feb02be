"""Race one engine against its baselines at each batch size, and summarize the timings."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

import numpy as np

from enginewright.core.params.benchmark import BenchmarkParams
from enginewright.core.params.build import BuildParams
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.speed.records import ENGINE, AtSize, Latency, MachinePace, Ratio
from enginewright.speed.timing import Contender, Timings, best_common_pace, median_interval, race

RAW_COLUMNS = ["contender", "batch", "round", "pace_microseconds", "milliseconds", "compute_milliseconds"]


@dataclass(frozen=True)
class Race:
    """The result of a race: its summary, every timing by batch size, and the timings of the rounds that count."""

    latencies: tuple[Latency, ...]
    ratios: tuple[Ratio, ...]
    pace: MachinePace
    timings: Mapping[int, Timings]
    counted: Mapping[int, Timings]


def race_contenders(
    contenders: Mapping[str, Callable[[Feeds], Contender]],
    samples: SampleSet,
    params: BenchmarkParams,
    read_pace: Callable[[], float],
    label: str,
    watches: Iterable[AbstractContextManager[object]] = (),
) -> Race:
    """Race contenders at all batch sizes. Each one is a function that binds feeds and returns the call to time."""
    rng = np.random.default_rng(params.seed)
    points = [{name: bind(samples.cycled(batch)) for name, bind in contenders.items()} for batch in params.batches]
    timings = dict(zip(params.batches, race(points, params.seconds, read_pace, rng, label, watches), strict=True))
    best = best_common_pace(list(timings.values()))
    counted = {batch: each if best is None else each.at_pace(best) for batch, each in timings.items()}
    rounds = sum(len(each.rounds) for each in timings.values())
    set_aside = rounds - sum(len(each.rounds) for each in counted.values())
    pairs = [(batch, each, baseline) for batch, each in counted.items() for baseline in params.baselines]
    return Race(
        latencies=tuple(summarize(name, batch, each) for batch, each in counted.items() for name in contenders),
        ratios=tuple(ratio_to(each, baseline, batch, params.confidence, rng) for batch, each, baseline in pairs),
        pace=MachinePace(microseconds=None if best is None else 1e6 * best, rounds=rounds, set_aside=set_aside),
        timings=timings,
        counted=counted,
    )


def with_tuned_batches(params: BenchmarkParams, build: BuildParams) -> BenchmarkParams:
    """Add the batch sizes that build.profiles tunes for to the ones that are asked for."""
    tuned = {each.batch.opt for each in build.all_profiles[1:]}
    return (
        params
        if tuned <= {*params.batches}
        else params.model_copy(update={"batches": tuple(sorted(tuned.union(params.batches)))})
    )


def quoted_batch(params: BenchmarkParams, build: BuildParams) -> int:
    """Return the batch size to quote speeds at: the one that engines are tuned for, or else the largest raced."""
    raced, optimum = with_tuned_batches(params, build).batches, build.profile.batch.opt
    return optimum if optimum in raced else max(raced)


def race_over_sizes(
    contenders: Mapping[str, Callable[[Feeds], Contender]],
    samples: SampleSet,
    build: BuildParams,
    params: BenchmarkParams,
    read_pace: Callable[[], float],
    label: str,
) -> tuple[AtSize, ...]:
    """Race at other sizes of the first axis that the user named, at the batch size that engines are tuned for. Other
    axes have the sizes that engines are tuned for."""
    profile = build.profile
    if not profile.axes:
        return ()
    axis, sizes = next(iter(profile.axes.items()))
    batch = min(params.batches, key=lambda each: abs(each - profile.batch.opt))
    one = params.model_copy(update={"batches": (batch,)})
    found = []
    tuned = {each.axes[axis].opt for each in build.all_profiles}
    for size in sorted({sizes.min, (sizes.opt + sizes.max) // 2, sizes.max, *tuned}):
        sized = samples.at(profile.at("opt") | {axis: size}, profile)
        race = race_contenders(contenders, sized, one, read_pace, f"{label}, {axis} {size}")
        found.append(AtSize(axis=axis, size=size, latencies=race.latencies, ratios=race.ratios))
    return tuple(found)


def summarize(contender: str, batch: int, timings: Timings) -> Latency:
    milliseconds = np.array([call.seconds for call in timings.calls_of(contender)]) * 1000
    compute = [call.compute * 1000 for call in timings.calls_of(contender) if call.compute is not None]
    p25, p50, p75, p90, p99 = (float(value) for value in np.percentile(milliseconds, [25, 50, 75, 90, 99]))
    return Latency(
        contender=contender,
        batch=batch,
        runs=len(milliseconds),
        p50=p50,
        p90=p90,
        p99=p99,
        compute=median(compute) if compute else None,
        spread=(p75 - p25) / p50,
        outliers=float(np.mean(milliseconds > 2 * p50)),
        warm_up_drift=timings.warm_ups[contender].drift,
        images_per_second=batch / p50 * 1000,
    )


def ratio_to(timings: Timings, baseline: str, batch: int, confidence: float, rng: np.random.Generator) -> Ratio:
    ratios = timings.ratios(baseline, ENGINE)
    low, high = median_interval(ratios, confidence, rng)
    middle = float(np.median(ratios))
    return Ratio(baseline=baseline, batch=batch, rounds=len(ratios), median=middle, low=low, high=high)


def raw_rows(timings: Mapping[int, Timings]) -> list[tuple[str, int, int, float, float, float | None]]:
    """Return a row for each timed call, with the machine pace of its round."""
    return [
        (contender, batch, number, 1e6 * each.pace, 1000 * call.seconds, call.compute and 1000 * call.compute)
        for batch, rounds in timings.items()
        for number, each in enumerate(rounds.rounds)
        for contender, calls in each.turns.items()
        for call in calls
    ]

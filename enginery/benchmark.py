"""One engine against PyTorch at each batch size."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from enginery.contenders import pytorch_contender
from enginery.contention import contention, usage
from enginery.core.params import BenchmarkParams
from enginery.core.progress import progress
from enginery.core.records import ENGINE, Contention, Latency, Ratio
from enginery.engines import Engine
from enginery.graphs import INPUT
from enginery.samples import SampleSet
from enginery.timing import Call, Timings, median_interval, race


@dataclass(frozen=True)
class Point:
    """All contenders at one batch size: the summary, and every single timing."""

    batch: int
    latencies: tuple[Latency, ...]
    ratios: tuple[Ratio, ...]
    contention: Contention
    timings: Timings


def benchmark_engine(
    engine: Engine, model: nn.Module, samples: SampleSet, params: BenchmarkParams, watching: AbstractContextManager[Any]
) -> list[Point]:
    """`watching` is entered for each race."""
    rng = np.random.default_rng(params.seed)
    label = f"benchmark, {engine.record.precision}"
    points = []
    for batch in progress(params.batches, label, len(params.batches)):
        images = samples.read_at(np.arange(batch) % len(samples))
        contenders = {ENGINE: engine.bind({INPUT: images})}
        for baseline in params.baselines:
            contenders[baseline] = pytorch_contender(
                model, baseline, images, engine.record.target.device, engine.record.build.tf32
            )
        before = usage()
        with watching:
            timings = race(contenders, params.seconds, rng)
        after = usage()
        points.append(
            Point(
                batch=batch,
                latencies=tuple(summarize(name, batch, timings.all(name)) for name in contenders),
                ratios=tuple(compare(timings, baseline, batch, params, rng) for baseline in params.baselines),
                contention=contention(batch, before, after),
                timings=timings,
            )
        )
    return points


def summarize(contender: str, batch: int, calls: Sequence[Call]) -> Latency:
    milliseconds: NDArray[np.float64] = np.array([call.seconds for call in calls]) * 1000
    compute = [call.compute * 1000 for call in calls if call.compute is not None]
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
        images_per_second=batch / p50 * 1000,
    )


def compare(timings: Timings, baseline: str, batch: int, params: BenchmarkParams, rng: np.random.Generator) -> Ratio:
    ratios = timings.ratios(baseline, ENGINE)
    low, high = median_interval(ratios, params.confidence, rng)
    return Ratio(
        baseline=baseline, batch=batch, rounds=len(ratios), median=float(np.median(ratios)), low=low, high=high
    )


def raw_rows(points: Sequence[Point]) -> list[tuple[str, int, int, float, float | None]]:
    """Every timing: contender, batch, round, milliseconds, and those of the compute alone."""
    return [
        (contender, point.batch, number, call.seconds * 1000, None if call.compute is None else call.compute * 1000)
        for point in points
        for contender, rounds in point.timings.rounds.items()
        for number, calls in enumerate(rounds)
        for call in calls
    ]


def all_latencies(points: Sequence[Point]) -> tuple[Latency, ...]:
    return tuple(chain.from_iterable(point.latencies for point in points))


def all_ratios(points: Sequence[Point]) -> tuple[Ratio, ...]:
    return tuple(chain.from_iterable(point.ratios for point in points))

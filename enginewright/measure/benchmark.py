"""Race one engine against its baselines at each batch size, and summarize the timings."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import BuildParams, InferenceParams
from enginewright.core.params.measuring import BenchmarkParams
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engines
from enginewright.engine.machine import Machine, Moments
from enginewright.measure.speed_records import ENGINE, AtSize, Latency, MachinePace, Ratio, Throughput
from enginewright.measure.timing import Contender, Timings, best_common_pace, race

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
    median, low, high = timings.factor(ENGINE, baseline, confidence, rng)
    return Ratio(baseline=baseline, batch=batch, rounds=len(timings.rounds), median=median, low=low, high=high)


def raw_rows(timings: Mapping[int, Timings]) -> list[tuple[str, int, int, float, float, float | None]]:
    """Return a row for each timed call, with the machine pace of its round."""
    return [
        (contender, batch, number, 1e6 * each.pace, 1000 * call.seconds, call.compute and 1000 * call.compute)
        for batch, rounds in timings.items()
        for number, each in enumerate(rounds.rounds)
        for contender, calls in each.turns.items()
        for call in calls
    ]


# Measure how many requests an engine answers per second when several are in flight, as in a server.

SLICES = 5


class Client(NamedTuple):
    """A client that asks from one thread only: ONNX Runtime keeps its captured CUDA graphs by thread."""

    ask: Contender
    thread: ThreadPoolExecutor


def engine_throughput(
    folder: Path, here: Machine, inference: InferenceParams, samples: SampleSet, params: BenchmarkParams
) -> tuple[Throughput, ...]:
    """Measure the throughput at each batch size, for each number of requests in flight."""
    found: list[Throughput] = []
    with ExitStack() as opened:
        counts = sorted({1, *params.requests})  # the others are compared with one request at a time
        engines = {requests: open_engines(folder, here, inference, requests) for requests in counts}
        for engine in chain.from_iterable(engines.values()):
            opened.enter_context(engine)
        threads = [opened.enter_context(ThreadPoolExecutor(1)) for _ in range(max(engines))]
        for batch in params.batches:
            feeds = samples.cycled(batch)
            clients = {
                requests: [Client(engine.bind(feeds), thread) for engine, thread in zip(group, threads, strict=False)]
                for requests, group in engines.items()
            }
            found += measure_throughput(clients, batch, params.seconds)
    return tuple(found)


def measure_throughput(clients: Mapping[int, Sequence[Client]], batch: int, seconds: float) -> list[Throughput]:
    """Measure groups of clients, by their size. The groups take slices of the time in turns, and the median counts."""
    rates: dict[int, list[float]] = {requests: [] for requests in clients}
    latencies: dict[int, list[float]] = {requests: [] for requests in clients}
    for _ in range(SLICES):
        for requests, group in clients.items():
            answers, took = ask_at_once(group, seconds / SLICES)
            rates[requests].append(len(answers) / took)
            latencies[requests] += answers
    return [
        Throughput(
            batch=batch,
            requests=requests,
            runs=len(times),
            images_per_second=batch * median(rates[requests]),
            p50=1000 * float(np.percentile(times, 50)),
            p99=1000 * float(np.percentile(times, 99)),
        )
        for requests, times in latencies.items()
    ]


def ask_at_once(clients: Sequence[Client], seconds: float) -> tuple[list[float], float]:
    """Let each client ask again as soon as it is answered. Return the seconds of each answer, and of all together."""
    for ask, thread in clients:  # a first call, one after the other: a capture must have the GPU to itself
        thread.submit(ask).result()
    started = time.perf_counter()
    futures = [thread.submit(_ask_until, started + seconds, ask) for ask, thread in clients]
    answers = list(chain.from_iterable(future.result() for future in futures))
    return answers, time.perf_counter() - started


def _ask_until(deadline: float, ask: Contender) -> list[float]:
    latencies: list[float] = []
    while (started := time.perf_counter()) < deadline or not latencies:
        ask()
        latencies.append(time.perf_counter() - started)
    return latencies


# Timings of a GPU as NVIDIA's trtexec writes them with --exportTimes: a JSON list with an object for each inference.
# TensorRT 10.3 to 11.1 write the same fields, in milliseconds.

Milliseconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]  # the end is beyond 30 years
WRITTEN_BY = "trtexec --exportTimes"
FILE = "times_batch_{}.json"  # in the folder of a benchmark, for each batch size


class Parts(BaseModel):
    """How long the parts of one inference took, in milliseconds. There are no copies where trtexec leaves them out."""

    model_config = ConfigDict(frozen=True, strict=True)

    copies_in: Milliseconds = Field(alias="h2dMs")
    compute: Milliseconds = Field(alias="computeMs")
    copies_out: Milliseconds = Field(alias="d2hMs")
    latency: Milliseconds = Field(alias="latencyMs")  # by the device's clock, from the first copy to the last one


class ExportedTimes(NamedTuple):
    place: str
    calls: tuple[Parts, ...]

    @property
    def has_copies(self) -> bool:
        return any(call.copies_in or call.copies_out for call in self.calls)


def write_exported_times(calls: Iterable[Moments], path: Path) -> None:
    """Write a line for each inference, as trtexec does."""
    lines = ",\n".join(json.dumps({name: round(value, 6) for name, value in _fields(call).items()}) for call in calls)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _fields(call: Moments) -> dict[str, float]:
    enqueuing, enqueued, copying_in, computing, copying_out, done = (1000 * moment for moment in call)
    return {
        "startEnqMs": enqueuing,
        "endEnqMs": enqueued,
        "startH2dMs": copying_in,
        "endH2dMs": computing,
        "startComputeMs": computing,
        "endComputeMs": copying_out,
        "startD2hMs": copying_out,
        "endD2hMs": done,
        "h2dMs": computing - copying_in,
        "computeMs": copying_out - computing,
        "d2hMs": done - copying_out,
        "latencyMs": done - copying_in,
    }


def read_exported_times(path: Path) -> ExportedTimes:
    try:
        calls = TypeAdapter(tuple[Parts, ...]).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        number, *field = first["loc"] or ("",)
        place = f"inference {number}, {field[0]}: " if field else ""
        raise EnginewrightError(f"{path} is not what {WRITTEN_BY} writes ({place}{first['msg']})") from None
    if not calls:
        raise EnginewrightError(f"{path} has no timings: measure for longer (--duration)")
    return ExportedTimes(str(path), calls)

"""Measure the speed of one engine: beside its baselines, with several requests in flight, by layers, and by itself."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np

from enginewright.core.files import scratch_folder
from enginewright.core.params.build import BenchmarkParams, BuildParams, InferenceParams
from enginewright.core.process import run_apart
from enginewright.data.feeds import Feeds, load_arrays, save_arrays
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import Engine, open_engine
from enginewright.engine.gpu import process_megabytes
from enginewright.engine.machine import Machine, require_fits
from enginewright.engine.record import RECORD, EngineRecord, LayerTime, read_engine, require_weights
from enginewright.engine.runtimes import load_runtime
from enginewright.measure import records
from enginewright.measure.timing import Bind, Contender, Timings, best_common_pace, race, take_turn, warm_up

RAW_COLUMNS = ["contender", "batch", "round", "pace_microseconds", "milliseconds", "compute_milliseconds"]


@dataclass(frozen=True)
class Race:
    """The result of a race: its summary, every timing by batch size, and the timings of the rounds that count."""

    latencies: tuple[records.Latency, ...]
    ratios: tuple[records.Ratio, ...]
    pace: records.MachinePace
    timings: Mapping[int, Timings]
    counted: Mapping[int, Timings]


def race_contenders(
    contenders: Mapping[str, Bind],
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
        pace=records.MachinePace(microseconds=None if best is None else 1e6 * best, rounds=rounds, set_aside=set_aside),
        timings=timings,
        counted=counted,
    )


def with_tuned_batches(params: BenchmarkParams, build: BuildParams) -> BenchmarkParams:
    """Add the batch sizes that build.profiles tunes for to the ones that are asked for."""
    missing = {each.batch.opt for each in build.all_profiles[1:]} - {*params.batches}
    return params.model_copy(update={"batches": tuple(sorted([*missing, *params.batches]))}) if missing else params


def race_over_sizes(
    contenders: Mapping[str, Bind],
    samples: SampleSet,
    build: BuildParams,
    params: BenchmarkParams,
    read_pace: Callable[[], float],
    label: str,
) -> tuple[records.AtSize, ...]:
    """Race at other sizes of the first axis that the user named. Others have the sizes that engines are tuned for."""
    profile = build.profile
    if not profile.axes:
        return ()
    axis, sizes = next(iter(profile.axes.items()))
    batch = min(params.batches, key=lambda each: abs(each - profile.batch.opt))
    one = params.model_copy(update={"batches": (batch,)})
    found, tuned = [], {each.axes[axis].opt for each in build.all_profiles}
    for size in sorted({sizes.min, (sizes.opt + sizes.max) // 2, sizes.max, *tuned}):
        sized = samples.at(profile.at("opt") | {axis: size}, profile)
        race = race_contenders(contenders, sized, one, read_pace, f"{label}, {axis} {size}")
        found.append(records.AtSize(axis=axis, size=size, latencies=race.latencies, ratios=race.ratios))
    return tuple(found)


def summarize(contender: str, batch: int, timings: Timings) -> records.Latency:
    milliseconds = np.array([call.seconds for call in timings.calls_of(contender)]) * 1000
    compute = [call.compute * 1000 for call in timings.calls_of(contender) if call.compute is not None]
    p25, p50, p75, p90, p99 = (float(value) for value in np.percentile(milliseconds, [25, 50, 75, 90, 99]))
    return records.Latency(
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


def ratio_to(timings: Timings, baseline: str, batch: int, confidence: float, rng: np.random.Generator) -> records.Ratio:
    median, low, high = timings.factor(records.ENGINE, baseline, confidence, rng)
    return records.Ratio(baseline=baseline, batch=batch, rounds=len(timings.rounds), median=median, low=low, high=high)


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
OpenFor = Callable[[int], Sequence[Engine]]  # so many requests in flight
Answers = dict[records.Throughput, list[float]]  # the seconds of each answer


class Client(NamedTuple):
    """A client that asks from one thread only: ONNX Runtime keeps its captured CUDA graphs by thread."""

    ask: Contender
    thread: ThreadPoolExecutor


def engine_throughput(open_for: OpenFor, samples: SampleSet, params: BenchmarkParams) -> Answers:
    found: Answers = {}
    with ExitStack() as opened:
        counts = sorted({1, *params.requests})  # the others are compared with one request at a time
        engines = {requests: open_for(requests) for requests in counts}
        for engine in chain.from_iterable(engines.values()):
            opened.enter_context(engine)
        threads = [opened.enter_context(ThreadPoolExecutor(1)) for _ in range(max(engines))]
        for batch in params.batches:
            feeds = samples.cycled(batch)
            clients = {
                requests: [Client(engine.bind(feeds), thread) for engine, thread in zip(group, threads, strict=False)]
                for requests, group in engines.items()
            }
            found |= measure_throughput(clients, batch, params.seconds, (params.within_ms or 0.0) / 1000)
    return found


def measure_throughput(clients: Mapping[int, Sequence[Client]], batch: int, seconds: float, limit: float) -> Answers:
    """Let each number of clients ask in turns. What answers within the limit asks on until its p99 is known."""
    rates, latencies = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)

    def lacks_p99(times: list[float]) -> bool:
        return len(times) < records.RUNS_FOR_P99 and median(times) <= limit

    while asked := [each for each in clients if len(rates[each]) < SLICES or lacks_p99(latencies[each])]:
        for requests in asked:
            answers, took = ask_at_once(clients[requests], seconds / SLICES)
            rates[requests].append(len(answers) / took)
            latencies[requests] += answers
    return {
        records.Throughput(
            batch=batch,
            requests=requests,
            runs=len(times),
            images_per_second=batch * median(rates[requests]),
            p50=1000 * float(np.percentile(times, 50)),
            p99=1000 * float(np.percentile(times, 99)),
        ): times
        for requests, times in latencies.items()
    }


def ask_at_once(clients: Sequence[Client], seconds: float) -> tuple[list[float], float]:
    """Let each client ask again as soon as it is answered. Return the seconds of each answer, and of all together."""
    for ask, thread in clients:  # a first call, one after the other: a capture must have the GPU to itself
        thread.submit(ask).result()
    began = time.perf_counter()

    def ask_on(ask: Contender) -> list[float]:
        latencies: list[float] = []
        while (started := time.perf_counter()) < began + seconds or not latencies:
            ask()
            latencies.append(time.perf_counter() - started)
        return latencies

    futures = [thread.submit(ask_on, ask) for ask, thread in clients]
    answers = list(chain.from_iterable(future.result() for future in futures))
    return answers, time.perf_counter() - began


# Time the layers of one engine, apart from the benchmark.

TRACED_CALLS = 48


def trace_engine(folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet) -> records.Trace:
    """Time the layers at the batch size that the engine is tuned for. There are none if the runtime gives no times."""
    layers = time_layers(folder, machine, inference, samples, TRACED_CALLS)
    record = EngineRecord.read(folder / RECORD)  # its hashes were checked
    times = tuple(layers) if any(layer.milliseconds for layer in layers) else ()
    batch = record.profile.batch.opt
    return records.Trace(precision=record.precision, machine=machine, batch=batch, calls=TRACED_CALLS, layers=times)


def time_layers(
    folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet, calls: int
) -> list[LayerTime]:
    record = read_engine(folder)
    require_fits(record.target, machine, folder)
    require_weights(record, folder)
    feeds = samples.tuned(record.build).cycled(record.profile.batch.opt)
    return load_runtime(machine.runtime).trace(folder, record.blueprint, inference, feeds, calls)


# Measure a contender in a process of its own: its peak memory and, on a GPU, an engine's compute time. A process that
# holds more counts the memory of all of it, and replays CUDA graphs more slowly: see docs/explanation/measuring.md.

FIRST_CALLS = 3
Found = TypeVar("Found")


def isolated(measure: Callable[..., Found], feeds: Feeds, *arguments: object) -> Found:
    """Call the function in a new process. The feeds are in a file, as the list of all samples would take memory of its
    own, and so would what `run_apart` sends."""
    with scratch_folder() as scratch:
        file = scratch / "feeds.npz"
        save_arrays(file, feeds)
        return run_apart("a contender in a process of its own", measure, file, *arguments, quiet=True)


def measure_engine(
    feeds: Path, folder: Path, machine: Path, validation: Path, inference: InferenceParams, params: BenchmarkParams
) -> records.Isolated:
    """Measure the memory on these feeds, and the compute time on the samples of `validation`."""
    here = Machine.read(machine)
    with open_engine(folder, here, inference) as engine:
        # Memory comes first, so that it does not include the samples.
        memory = peak_of(engine.bind(load_arrays(feeds)), here.device)
        samples = SampleSet.open(validation).tuned(engine.record.build)
        batches = params.batches if here.device == "cuda" else ()
        compute = {}  # milliseconds
        for batch in batches:
            call = engine.bind(samples.cycled(batch))
            warm_up(call, params.seconds / 2)
            seconds = [timed.compute for timed in take_turn(call, params.seconds) if timed.compute is not None]
            compute[batch] = 1000 * median(seconds)
    return records.Isolated(memory=memory, compute=compute)


def peak_of(call: Callable[[], object], device: str) -> records.PeakMemory:
    """Return the peak memory after a few calls. A contender keeps its GPU memory, so the use at the end is the peak."""
    for _ in range(FIRST_CALLS):
        call()
    # `ru_maxrss` would include the parent's memory, from before the exec.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    host = int(status["VmHWM"].split()[0]) / 1000
    return records.PeakMemory(host=host, device=process_megabytes() if device == "cuda" else None)

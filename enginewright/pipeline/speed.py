"""How fast engines are: one against PyTorch, and all against each other."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from enginewright.core.facts import PRECISIONS, PrecisionName
from enginewright.core.files import new_folder
from enginewright.core.params.all import Params
from enginewright.core.params.build import EAGER, ONNXRUNTIME, Baseline, InferenceParams
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine, open_engines
from enginewright.engine.gpu import GpuSampler
from enginewright.engine.machine import Machine, differences
from enginewright.engine.record import RECORD, REFUSED, pass_on_refusal, read_engine
from enginewright.measure.benchmark import (
    RAW_COLUMNS,
    Race,
    engine_throughput,
    isolated,
    measure_engine,
    quoted_batch,
    race_contenders,
    race_over_sizes,
    raw_rows,
    with_tuned_batches,
)
from enginewright.measure.contenders import measure_pytorch, open_baseline, pace_meter, require_possible
from enginewright.measure.race import Open, open_contender, race_engines
from enginewright.measure.records import ENGINE, LAUNCHED, Benchmark
from enginewright.measure.timing import Bind, ContentionWatch, contention_problems, whole_machine
from enginewright.measure.within import search_within
from enginewright.model.checkpoint import load_model
from enginewright.targets.ray_cluster import whole_node


class BenchmarkPaths(NamedTuple):
    engine: Path
    simplified: Path
    weights: Path
    validation: Path
    machine: Path
    report: Path


def benchmark(params: Params, precision: PrecisionName, paths: BenchmarkPaths) -> None:
    """Write summary.json, timings.csv and, on a GPU, gpu.csv."""
    if pass_on_refusal(paths.engine, paths.report / REFUSED):
        return
    record, here = read_engine(paths.engine), Machine.read(paths.machine)
    asked, inference = with_tuned_batches(params.benchmark, record.build), params.inference.on(here.cores)
    require_possible(asked.baselines, here.device)
    torch.set_num_threads(inference.threads)
    samples = SampleSet.open(paths.validation).tuned(record.build)
    with whole_node(f"benchmark, {precision}", params.cluster), whole_machine(f"benchmark, {precision}"):
        # These run in processes of their own, before this process takes memory that they need.
        largest = samples.cycled(max(asked.batches))
        places = paths.engine, paths.machine, paths.validation
        alone = isolated(measure_engine, largest, *places, inference, asked)
        peak_memory = {ENGINE: alone.memory}
        if asked.baselines != (ONNXRUNTIME,):
            peak_memory[EAGER] = isolated(measure_pytorch, largest, paths.weights, paths.engine, inference.threads)
        contention_watch, sampler = ContentionWatch(), GpuSampler() if here.device == "cuda" else None
        with ExitStack() as opened:
            first = samples.cycled(asked.batches[0])
            contenders = _contenders(opened, paths, here, inference, asked.baselines, first)
            pace = pace_meter(here.device, inference.threads)
            watches: list[AbstractContextManager[object]] = [contention_watch, *([sampler] if sampler else [])]
            race = race_contenders(contenders, samples, asked, pace, f"benchmark, {precision}", watches)
            sizes = race_over_sizes(contenders, samples, record.build, asked, pace, f"benchmark, {precision}")
        open_for = partial(open_engines, paths.engine, here, inference)
        answers = engine_throughput(open_for, samples, asked)
        summary = Benchmark(
            precision=precision,
            threads=inference.threads,
            cuda_graph=LAUNCHED in contenders,
            confidence=asked.confidence,
            latencies=race.latencies,
            ratios=race.ratios,
            pace=race.pace,
            throughput=tuple(answers),
            contention=contention_watch.contention,
            peak_memory=peak_memory,
            isolated_compute=alone.compute,
            gpu=sampler.conditions() if sampler else None,
            pytorch=torch.__version__,
            sizes=sizes,
            within=search_within(answers, here.runtime == "openvino", open_for, samples, asked),
        )
    _write(paths.report, summary, race, sampler)
    for ratio in summary.ratios:
        interval = f"({ratio.low:.2f} to {ratio.high:.2f})"
        print(f"{precision}, batch {ratio.batch}: {ratio.median:.2f} times {ratio.baseline} {interval}")


def _write(report: Path, summary: Benchmark, race: Race, sampler: GpuSampler | None) -> None:
    with new_folder(report) as unfinished:
        summary.write(unfinished / "summary.json")
        timings = pd.DataFrame(raw_rows(race.timings), columns=RAW_COLUMNS)
        timings.to_csv(unfinished / "timings.csv", index=False, float_format="%.6f")
        if sampler:
            pd.DataFrame(sampler.samples).to_csv(unfinished / "gpu.csv", index=False)


def _contenders(
    opened: ExitStack,
    paths: BenchmarkPaths,
    here: Machine,
    inference: InferenceParams,
    baselines: Sequence[Baseline],
    first: Feeds,
) -> dict[str, Bind]:
    """Return, by name, the functions that bind feeds and return the call to time. `opened` closes them."""
    loaded = opened.enter_context(open_engine(paths.engine, here, inference))
    found: dict[str, Bind] = {ENGINE: loaded.bind}
    loaded.run(first)  # shows whether its work can be captured
    if loaded.replays:
        plain = inference.model_copy(update={"cuda_graph": False})
        found[LAUNCHED] = opened.enter_context(open_engine(paths.engine, here, plain)).bind
    graph, load_pytorch = paths.simplified / "model.onnx", cache(partial(load_model, paths.weights))
    for baseline in baselines:
        opening = open_baseline(baseline, loaded.record, first, graph, load_pytorch, inference)
        found[baseline] = opened.enter_context(opening)
    return found


class RacePaths(NamedTuple):
    engines: Path
    simplified: Path
    weights: Path
    validation: Path
    machine: Path
    report: Path


def race(params: Params, paths: RacePaths) -> None:
    """Write race.json. What lies in the folder of engines takes part, as far as this machine runs it: the report reads
    what it needs, and a precision that was dropped must not make this stage run again."""
    here = Machine.read(paths.machine)
    inference = params.inference.on(here.cores)
    torch.set_num_threads(inference.threads)
    found = {name: read_engine(paths.engines / name) for name in PRECISIONS if (paths.engines / name / RECORD).exists()}
    records = {name: record for name, record in found.items() if not differences(record.target, here)}
    record = next(iter(records.values()))
    batch, baseline = quoted_batch(params.benchmark, record.build), params.benchmark.baselines[0]
    feeds = SampleSet.open(paths.validation).tuned(record.build).cycled(batch)
    openers: dict[str, Open] = {
        name: partial(open_contender, paths.engines / name, here, inference) for name in records
    }
    graph, load_pytorch = paths.simplified / "model.onnx", partial(load_model, paths.weights)
    openers[baseline] = partial(open_baseline, baseline, record, feeds, graph, load_pytorch, inference)
    with whole_node("race", params.cluster), whole_machine("race"), ContentionWatch() as watch:
        raced = race_engines(openers, baseline, feeds, batch, params.benchmark, inference.threads)
    disturbed = tuple(contention_problems(watch.contention, inference.threads))
    raced.model_copy(update={"disturbed": disturbed}).write(paths.report)
    for name in records:
        median, low, high = raced.times(name, baseline)
        print(f"{name}, batch {batch}: {median:.2f} times {baseline} ({low:.2f} to {high:.2f})")

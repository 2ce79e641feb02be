"""How fast engines are: one against its baselines, and all against each other. A target may lack PyTorch and pandas."""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, PrecisionName
from enginewright.core.files import new_folder, scratch_folder
from enginewright.core.params.all import Params
from enginewright.core.params.build import (
    CUDA_GRAPH,
    EAGER,
    ON_CPU,
    ONNXRUNTIME,
    TORCH_TENSORRT,
    Baseline,
    InferenceParams,
)
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine, open_engines
from enginewright.engine.gpu import GpuSample, GpuSampler
from enginewright.engine.machine import Machine, differences
from enginewright.engine.record import RECORD, REFUSED, EngineRecord, pass_on_refusal, read_engine
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.pixels import take_pixels
from enginewright.measure import benchmark as measuring
from enginewright.measure.race import Open, open_contender, race_engines
from enginewright.measure.records import ENGINE, LAUNCHED, Benchmark
from enginewright.measure.timing import Bind, ContentionWatch, contention_problems, pace_of_numpy, whole_machine
from enginewright.measure.within import search_within
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
    asked, inference = measuring.with_tuned_batches(params.benchmark, record.build), params.inference.on(here.cores)
    require_possible(asked.baselines, here.device)
    pytorch, pace_meter = _open_pytorch(inference.threads)
    samples = SampleSet.open(paths.validation).tuned(record.build)
    with whole_node(f"benchmark, {precision}", params.cluster), whole_machine(f"benchmark, {precision}"):
        # These run in processes of their own, before this process takes memory that they need.
        largest = samples.cycled(max(asked.batches))
        places = paths.engine, paths.machine, paths.validation
        alone = measuring.isolated(measuring.measure_engine, largest, *places, inference, asked)
        peak_memory = {ENGINE: alone.memory}
        if not {ONNXRUNTIME, ON_CPU}.issuperset(asked.baselines):
            from enginewright.measure.contenders import measure_pytorch

            peak_memory[EAGER] = measuring.isolated(
                measure_pytorch, largest, paths.weights, paths.engine, inference.threads
            )
        contention_watch, sampler = ContentionWatch(), GpuSampler() if here.device == "cuda" else None
        with ExitStack() as opened:
            first = samples.cycled(asked.batches[0])
            contenders = _contenders(opened, paths, here, inference, asked.baselines, first)
            pace = pace_meter(here.device, inference.threads)
            watches: list[AbstractContextManager[object]] = [contention_watch, *([sampler] if sampler else [])]
            race = measuring.race_contenders(contenders, samples, asked, pace, f"benchmark, {precision}", watches)
            sizes = measuring.race_over_sizes(contenders, samples, record.build, asked, pace, f"benchmark, {precision}")
        open_for = partial(open_engines, paths.engine, here, inference)
        answers = measuring.engine_throughput(open_for, samples, asked)
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
            pytorch=pytorch,
            sizes=sizes,
            within=search_within(answers, here.runtime == "openvino", open_for, samples, asked),
        )
    _write(paths.report, summary, race, sampler)
    for ratio in summary.ratios:
        interval = f"({ratio.low:.2f} to {ratio.high:.2f})"
        print(f"{precision}, batch {ratio.batch}: {ratio.median:.2f} times {ratio.baseline} {interval}")


def _write(report: Path, summary: Benchmark, race: measuring.Race, sampler: GpuSampler | None) -> None:
    with new_folder(report) as unfinished:
        summary.write(unfinished / "summary.json")
        rows = (
            [f"{one:.6f}" if isinstance(one, float) else one for one in row] for row in measuring.raw_rows(race.timings)
        )
        _write_rows(unfinished / "timings.csv", measuring.RAW_COLUMNS, rows)
        if sampler:
            _write_rows(unfinished / "gpu.csv", GpuSample._fields, sampler.samples)


def _write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def _open_pytorch(threads: int) -> tuple[str, Callable[[str, int], Callable[[], float]]]:
    """Give PyTorch so many threads, if it is installed. Return its version, and what makes a meter of the pace."""
    if find_spec("torch") is None:
        return "", lambda device, threads: pace_of_numpy
    import torch

    from enginewright.measure.contenders import pace_meter

    torch.set_num_threads(threads)
    return torch.__version__, pace_meter


def _load_model(weights: Path) -> Any:
    from enginewright.model.checkpoint import load_model

    return load_model(weights)


# Each version asks for one version of PyTorch, and none yet for the one that pyproject.toml pins. So this cannot be one
# of its extras: pip would refuse to install it.
INSTALL_TORCH_TENSORRT = "`pip install torch-tensorrt==2.14.0` puts PyTorch 2.14 and TensorRT 11.1 in place of yours"


def require_possible(baselines: Sequence[Baseline], device: str) -> None:
    for baseline in baselines:
        words = baseline.split("+")
        if device != "cuda" and (CUDA_GRAPH in words or TORCH_TENSORRT in words):
            raise EnginewrightError(
                f"benchmark.baselines: {baseline} needs a GPU, and the runtime chosen here uses none"
            )
        if TORCH_TENSORRT in words:
            _import_torch_tensorrt()
        if baseline in (ONNXRUNTIME, ON_CPU):
            runtime, on = load_runtime(ONNXRUNTIME), "cpu" if baseline == ON_CPU else device
            if problem := runtime.missing():
                raise EnginewrightError(f"benchmark.baselines: {problem}")
            if runtime.device() != on:
                instead = f"write {ONNXRUNTIME}" if baseline == ON_CPU else f"write {ON_CPU} if that is meant"
                raise EnginewrightError(
                    f"benchmark.baselines: {baseline} would run on {runtime.device()} here and the engine on {device}: "
                    f"race both on one, by another runtime, drop it, or {instead}"
                )


def _import_torch_tensorrt() -> None:
    """Import the package, which adds its backend to torch.compile."""
    try:
        import torch_tensorrt  # noqa: F401
    except Exception as error:  # a plain Exception where TensorRT is missing, OSError beside another PyTorch
        absent = isinstance(error, ModuleNotFoundError) and error.name == TORCH_TENSORRT
        problem = "is not installed" if absent else f"cannot be loaded ({error})"
        raise EnginewrightError(f"benchmark.baselines: Torch-TensorRT {problem}: {INSTALL_TORCH_TENSORRT}") from None


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
    graph, load_pytorch = paths.simplified / "model.onnx", cache(partial(_load_model, paths.weights))
    for baseline in baselines:
        opening = open_baseline(baseline, loaded.record, first, graph, load_pytorch, inference)
        found[baseline] = opened.enter_context(opening)
    return found


@contextmanager
def open_baseline(
    baseline: Baseline,
    record: EngineRecord,
    example: Feeds,
    onnx: Path,
    load_pytorch: Callable[[], Any],
    inference: InferenceParams,
) -> Iterator[Bind]:
    """Open a baseline that takes what the engine takes, and return what binds feeds. PyTorch normalizes pixels itself,
    ONNX Runtime by its graph: it optimizes `onnx`, the float32 graph, like an engine, and tries it with the example."""
    if baseline not in (ONNXRUNTIME, ON_CPU):
        from enginewright.measure.contenders import bind_pytorch

        yield bind_pytorch(load_pytorch(), baseline, record)
        return
    blueprint, runtime = replace(record.blueprint, example=example), load_runtime(ONNXRUNTIME)
    with scratch_folder() as scratch:
        if record.build.pixels:
            graph = take_pixels(load_graph(onnx), record.preprocessing, record.build.pixels)
            onnx = scratch / "model.onnx"
            save_graph(graph, onnx)
        runtime.compile(onnx, blueprint, scratch)
        (session,) = runtime.load(scratch, blueprint, inference, requests=1)
        with closing(session):
            yield session.bind


def race(
    params: Params, engines: Path, simplified: Path, weights: Path, validation: Path, machine: Path, report: Path
) -> None:
    """Write race.json. What lies in the folder of engines takes part, as far as this machine runs it: the report reads
    what it needs, and a precision that was dropped must not make this stage run again."""
    here = Machine.read(machine)
    inference = params.inference.on(here.cores)
    _open_pytorch(inference.threads)
    found = {name: read_engine(engines / name) for name in PRECISIONS if (engines / name / RECORD).exists()}
    records = {name: record for name, record in found.items() if not differences(record.target, here)}
    record = next(iter(records.values()))
    # Quote speeds at the batch size that engines are tuned for, or else at the largest that is raced.
    batches = measuring.with_tuned_batches(params.benchmark, record.build).batches
    batch, baseline = record.build.profile.batch.opt, params.benchmark.baselines[0]
    batch = batch if batch in batches else max(batches)
    feeds = SampleSet.open(validation).tuned(record.build).cycled(batch)
    openers: dict[str, Open] = {name: partial(open_contender, engines / name, here, inference) for name in records}
    graph, load_pytorch = simplified / "model.onnx", partial(_load_model, weights)
    openers[baseline] = partial(open_baseline, baseline, record, feeds, graph, load_pytorch, inference)
    with whole_node("race", params.cluster), whole_machine("race"), ContentionWatch() as watch:
        raced = race_engines(openers, baseline, feeds, batch, params.benchmark, inference.threads)
    disturbed = tuple(contention_problems(watch.contention, inference.threads))
    raced.model_copy(update={"disturbed": disturbed}).write(report)
    for name in records:
        median, low, high = raced.times(name, baseline)
        print(f"{name}, batch {batch}: {median:.2f} times {baseline} ({low:.2f} to {high:.2f})")

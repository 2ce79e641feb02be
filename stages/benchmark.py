"""Race one engine against PyTorch in one process, and keep every timing beside the summary."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from enginery.alone import engine_alone, pytorch_peak_memory
from enginery.benchmark import RAW_COLUMNS, race_contenders, raw_rows
from enginery.contenders import onnxruntime_session, pytorch_contender, require_possible
from enginery.contention import Company
from enginery.core.files import new_folder
from enginery.core.params import EAGER, ONNXRUNTIME, Baseline, InferenceParams, load_params
from enginery.core.records import ENGINE, LAUNCHED, Benchmark, Machine
from enginery.core.stage import run_stage
from enginery.engines import Engine
from enginery.feeds import Feeds
from enginery.gpu.nvml import GpuSampler
from enginery.models import load_model
from enginery.pace import pace_of
from enginery.samples import SampleSet
from enginery.throughput import engine_throughput
from enginery.timing import Contender


def benchmark(
    precision: str, engine: Path, simplified: Path, weights: Path, validation: Path, machine: Path, report: Path
) -> None:
    """Write summary.json, timings.csv and, on a GPU, gpu.csv."""
    params, here = load_params(), Machine.read(machine)
    require_possible(params.benchmark.baselines, here.device)
    inference = params.inference.on(here.cores)
    torch.set_num_threads(inference.threads)
    samples = SampleSet.open(validation)
    # Processes of their own, while this one holds nothing yet that they might lack.
    alone = engine_alone(engine, machine, validation, inference, params.benchmark)
    peak_memory = {ENGINE: alone.memory}
    if params.benchmark.baselines != (ONNXRUNTIME,):
        largest = max(params.benchmark.batches)
        peak_memory[EAGER] = pytorch_peak_memory(weights, engine, largest, inference.threads, here.device)
    company, sampler = Company(), GpuSampler() if here.device == "cuda" else None
    with ExitStack() as opened:
        contenders = _contenders(opened, engine, simplified, weights, here, inference, params.benchmark.baselines)
        pace = pace_of(here.device, inference.threads)
        watches: list[AbstractContextManager[object]] = [company, sampler] if sampler else [company]
        race = race_contenders(contenders, samples, params.benchmark, pace, f"benchmark, {precision}", watches)
    summary = Benchmark(
        precision=precision,
        threads=inference.threads,
        cuda_graph=LAUNCHED in contenders,
        confidence=params.benchmark.confidence,
        latencies=race.latencies,
        ratios=race.ratios,
        pace=race.pace,
        throughput=engine_throughput(engine, here, inference, samples, params.benchmark),
        contention=company.taken,
        peak_memory=peak_memory,
        alone=alone.compute,
        gpu=sampler.conditions() if sampler else None,
        pytorch=torch.__version__,
    )
    with new_folder(report) as unfinished:
        summary.write(unfinished / "summary.json")
        timings = pd.DataFrame(raw_rows(race.timings), columns=RAW_COLUMNS)
        timings.to_csv(unfinished / "timings.csv", index=False, float_format="%.6f")
        if sampler:
            pd.DataFrame(sampler.samples).to_csv(unfinished / "gpu.csv", index=False)
    for ratio in summary.ratios:
        print(
            f"{precision}, batch {ratio.batch}: {ratio.median:.2f} times {ratio.baseline} "
            f"({ratio.low:.2f} to {ratio.high:.2f})"
        )


def _contenders(
    opened: ExitStack,
    engine: Path,
    simplified: Path,
    weights: Path,
    here: Machine,
    inference: InferenceParams,
    baselines: Sequence[Baseline],
) -> dict[str, Callable[[Feeds], Contender]]:
    """By name, what binds feeds and returns the call to time; `opened` closes them."""
    loaded = opened.enter_context(Engine.open(engine, here, inference))
    found: dict[str, Callable[[Feeds], Contender]] = {ENGINE: loaded.bind}
    if loaded.replays:
        plain = inference.model_copy(update={"cuda_graph": False})
        found[LAUNCHED] = opened.enter_context(Engine.open(engine, here, plain)).bind
    blueprint = loaded.record.blueprint
    model = None if baselines == (ONNXRUNTIME,) else load_model(weights)
    for baseline in baselines:
        if baseline == ONNXRUNTIME:
            session = onnxruntime_session(simplified / "model.onnx", blueprint, inference)
            found[baseline] = opened.enter_context(session).bind
        elif model:
            found[baseline] = partial(pytorch_contender, model, baseline, here.device, blueprint.build.tf32)
    return found


if __name__ == "__main__":
    run_stage(benchmark)

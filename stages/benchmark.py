"""Race one engine against PyTorch in one process, and keep every timing beside the summary."""

from contextlib import nullcontext
from pathlib import Path

import pandas as pd
import torch

from enginery.benchmark import all_latencies, all_ratios, benchmark_engine, raw_rows
from enginery.core.files import new_folder
from enginery.core.params import load_params
from enginery.core.records import ENGINE, Benchmark, Machine, Weights
from enginery.core.stage import run_stage
from enginery.engines import Engine
from enginery.gpu.nvml import GpuSampler
from enginery.memory import engine_peak_memory, pytorch_peak_memory
from enginery.models import load_model
from enginery.runtimes import TENSORRT
from enginery.samples import SampleSet


def benchmark(precision: str, engine: Path, weights: Path, validation: Path, machine: Path, report: Path) -> None:
    """Write summary.json, timings.csv and, on a GPU, gpu.csv."""
    params, here = load_params(), Machine.read(machine)
    inference = params.inference.model_copy(update={"threads": params.inference.threads or here.cores})
    torch.set_num_threads(inference.threads)
    record, samples = Weights.read(weights / "weights.json"), SampleSet.open(validation)
    model = load_model(record.model, record.classes, weights / "weights.pt")
    sampler = GpuSampler() if here.device == "cuda" else None
    with Engine.open(engine, here, inference) as loaded:
        points = benchmark_engine(loaded, model, samples, params.benchmark, sampler or nullcontext())
    largest, size = max(params.benchmark.batches), samples.pixels.shape[-1]
    summary = Benchmark(
        precision=precision,
        threads=inference.threads,
        cuda_graph=inference.cuda_graph and here.runtime in TENSORRT,
        confidence=params.benchmark.confidence,
        latencies=all_latencies(points),
        ratios=all_ratios(points),
        contention=tuple(point.contention for point in points),
        peak_memory={
            ENGINE: engine_peak_memory(engine, machine, largest, inference),
            "eager": pytorch_peak_memory(weights, largest, inference.threads, size, here.device),
        },
        gpu=sampler.conditions() if sampler else None,
    )
    with new_folder(report) as unfinished:
        summary.write(unfinished / "summary.json")
        columns = ["contender", "batch", "round", "milliseconds", "compute_milliseconds"]
        timings = pd.DataFrame(raw_rows(points), columns=columns)
        timings.to_csv(unfinished / "timings.csv", index=False, float_format="%.6f")
        if sampler:
            pd.DataFrame(sampler.samples).to_csv(unfinished / "gpu.csv", index=False)
    for ratio in summary.ratios:
        print(
            f"{precision}, batch {ratio.batch}: {ratio.median:.2f} times {ratio.baseline} "
            f"({ratio.low:.2f} to {ratio.high:.2f})"
        )


if __name__ == "__main__":
    run_stage(benchmark)

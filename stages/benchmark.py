"""Race one engine against PyTorch in one process, and keep every timing beside the summary."""

from pathlib import Path

import pandas as pd
import torch

from enginery.benchmark import all_latencies, all_ratios, benchmark_engine, raw_rows
from enginery.core.files import new_folder
from enginery.core.params import load_params
from enginery.core.records import Benchmark, Machine, Weights
from enginery.core.stage import run_stage
from enginery.engines import Engine
from enginery.memory import engine_peak_megabytes, pytorch_peak_megabytes
from enginery.models import load_model
from enginery.samples import SampleSet


def benchmark(precision: str, engine: Path, weights: Path, validation: Path, machine: Path, report: Path) -> None:
    """Write summary.json and timings.csv."""
    params, here = load_params().benchmark, Machine.read(machine)
    threads = params.threads or here.cores
    torch.set_num_threads(threads)
    record, samples = Weights.read(weights / "weights.json"), SampleSet.open(validation)
    model = load_model(record.model, record.classes, weights / "weights.pt")
    with Engine.open(engine, here, threads) as loaded:
        points = benchmark_engine(loaded, model, samples, params)
    largest, size = max(params.batches), samples.pixels.shape[-1]
    summary = Benchmark(
        precision=precision,
        threads=threads,
        confidence=params.confidence,
        latencies=all_latencies(points),
        ratios=all_ratios(points),
        peak_megabytes={
            "engine": engine_peak_megabytes(engine, largest, threads),
            "eager": pytorch_peak_megabytes(weights, largest, threads, size, here.device),
        },
    )
    with new_folder(report) as unfinished:
        summary.write(unfinished / "summary.json")
        timings = pd.DataFrame(raw_rows(points), columns=["contender", "batch", "round", "milliseconds"])
        timings.to_csv(unfinished / "timings.csv", index=False, float_format="%.6f")
    for ratio in summary.ratios:
        print(
            f"{precision}, batch {ratio.batch}: {ratio.median:.2f} times {ratio.baseline} "
            f"({ratio.low:.2f} to {ratio.high:.2f})"
        )


if __name__ == "__main__":
    run_stage(benchmark)

"""Compare Enginewright's streamed entropy calibration with ONNX Runtime's calibrator: seconds and peak memory.

Both find the thresholds of all float activations of one ONNX file (a torchvision model with random weights), with the
same images in the same batches and 2,048 bins. Then Enginewright runs on many more samples, and its memory must not
grow.
Each run has a new process; its peak memory is that process's VmHWM.

    python benchmarks/scale/calibration.py

ONNX Runtime keeps every activation, 115 MB a sample for ResNet-50 at 224 pixels, about 8 GB for 64. The exit code is
1, with a sentence, where a target is missed.
"""

import argparse
import contextlib
import io
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

BINS, QUANTIZED_BINS, OPSET = 2048, 128, 20
LEAST_SPEEDUP, MOST_MEMORY, MOST_SECONDS = 8.0, 1.05, 1.10
Result = TypeVar("Result")


@dataclass(frozen=True)
class Images:
    """Images of noise that are made while they are read: if they were in memory, a calibrator's would seem larger."""

    samples: int
    batch: int
    size: int

    def __iter__(self) -> Iterator[dict[str, NDArray[np.float32]]]:
        rng = np.random.default_rng(0)
        for _ in range(self.samples // self.batch):
            yield {"input": rng.standard_normal((self.batch, 3, self.size, self.size), np.float32)}


@dataclass(frozen=True)
class Run:
    calibrator: str
    samples: int
    tensors: int
    seconds: float
    megabytes: float


def export(name: str, size: int, path: Path) -> None:
    import torch

    from enginewright.core.params.build import Profile, Range
    from enginewright.core.params.model import ModelParams
    from enginewright.data.feeds import BATCH
    from enginewright.graph.onnx_file import save_graph
    from enginewright.graph.simplify import fold_constants, simplify_graph
    from enginewright.model.export import export_model
    from enginewright.model.factory import make_model

    torch.manual_seed(0)
    model = make_model(ModelParams(source=name, arguments={}), classes=1000)
    profile = Profile(batch=Range(min=1, opt=2, max=64))
    example = {"input": np.zeros((2, 3, size, size), np.float32)}
    exported = export_model(model, example, {"input": {0: BATCH}}, profile, OPSET)
    save_graph(fold_constants(simplify_graph(exported)), path)


def run_enginewright(model: Path, images: Images) -> Run:
    from enginewright.graph.onnx_file import load_graph
    from enginewright.precision.calibration.calibrate import measure
    from enginewright.precision.calibration.histogram import choose_amax

    started = time.perf_counter()
    histograms = measure(load_graph(model), images, BINS)
    thresholds = [choose_amax(histogram, "entropy", 99.99) for histogram in histograms.values()]
    return Run("Enginewright", images.samples, len(thresholds), time.perf_counter() - started, peak_megabytes())


def run_onnxruntime(model: Path, images: Images) -> Run:
    """Calibrate with the same calls as ONNX Runtime's own quantize_static."""
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    class Reader:
        def __init__(self) -> None:
            self.feeds = iter(images)

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            return next(self.feeds, None)

    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator = create_calibrator(
            model,
            augmented_model_path=str(model.with_name("augmented.onnx")),
            calibrate_method=CalibrationMethod.Entropy,
            extra_options={"num_bins": BINS, "num_quantized_bins": QUANTIZED_BINS},
        )
        calibrator.augment_graph()
        calibrator.create_inference_session()
        calibrator.collect_data(Reader())
        thresholds = calibrator.compute_data()
    return Run("ONNX Runtime", images.samples, len(thresholds.data), time.perf_counter() - started, peak_megabytes())


def peak_megabytes() -> float:
    """Return the peak memory of this process in MB. `ru_maxrss` would include the parent's, from before the exec."""
    return int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1000


def in_own_process(task: Callable[..., Result], *arguments: object) -> Result:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(task, *arguments).result()


def show(run: Run) -> Run:
    per_sample = run.seconds / run.samples * 1000
    print(
        f"| {run.calibrator} | {run.samples} | {run.tensors} | {run.seconds:.1f} | {per_sample:.0f} "
        f"| {run.megabytes:.0f} |",
        flush=True,
    )
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="any torchvision classifier")
    parser.add_argument("--size", type=int, default=224, help="pixels")
    parser.add_argument("--samples", type=int, default=64, help="how many samples both calibrate with")
    parser.add_argument("--large", type=int, default=512, help="samples that must fit into the same memory")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--skip-onnxruntime", action="store_true")
    options = parser.parse_args()
    if options.samples % options.batch or options.large % options.batch:
        parser.error("--samples and --large must be multiples of --batch: ONNX Runtime takes no smaller last batch")

    few = Images(options.samples, options.batch, options.size)
    many = Images(options.large, options.batch, options.size)
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model.onnx"
        in_own_process(export, options.model, options.size, model)
        print(f"{options.model} at {options.size} pixels, batches of {options.batch}, entropy, {BINS} bins\n")
        print("| calibrator | samples | tensors | seconds | ms per sample | peak MB |")
        print("|---|---|---|---|---|---|", flush=True)
        ours = show(in_own_process(run_enginewright, model, few))
        large = show(in_own_process(run_enginewright, model, many))
        theirs = None if options.skip_onnxruntime else show(in_own_process(run_onnxruntime, model, few))

    misses = []
    memory, times, samples = large.megabytes / ours.megabytes, large.seconds / ours.seconds, many.samples / few.samples
    print(f"\n{samples:g} times the samples take {memory:.3f} times the memory and {times:.2f} times the seconds.")
    if memory > MOST_MEMORY:
        misses.append(f"memory grew {memory:.3f} times, and may grow {MOST_MEMORY} times")
    if times > MOST_SECONDS * samples:
        misses.append(f"the time grew {times:.2f} times, more than the samples did ({samples:g} times)")
    if theirs:
        speedup = theirs.seconds / ours.seconds
        print(
            f"Enginewright is {speedup:.1f} times as fast as ONNX Runtime, "
            f"in {ours.megabytes / theirs.megabytes:.2f} times its memory."
        )
        if speedup < LEAST_SPEEDUP:
            misses.append(
                f"Enginewright is {speedup:.1f} times as fast as ONNX Runtime, and should be {LEAST_SPEEDUP:g}"
            )
    if misses:
        sys.exit(f"Target missed: {'; '.join(misses)}.")


if __name__ == "__main__":
    main()

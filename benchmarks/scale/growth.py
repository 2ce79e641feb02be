"""Measure how cost grows: calibration and validation with the number of images, an inference with the batch size.

The seconds of the stages should lie on a line, and memory should not grow. The batch sizes are those of the last race.
Both stages run their own code on sets of growing size, which repeat the pipeline's own samples on disk. Each run has a
new process; its peak memory is that process's VmHWM. The fastest of some repetitions counts, because other programs can
only add to a time. After `dvc repro`, on a machine that does nothing else:

    python benchmarks/scale/growth.py

The exit code is 1, with a sentence, where a time is off its line by more than 10 %, or memory grows by more than 10 %.
"""

import argparse
import contextlib
import io
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from calibration import in_own_process, peak_megabytes
from scipy.optimize import nnls

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.params.all import Params
from enginewright.data.sample_set import MANIFEST, Manifest, input_file, output_file
from enginewright.measure.history import read_measurements
from enginewright.measure.records import ENGINE, Reference

ARTIFACTS = Path("artifacts")
MOST_MEMORY = 1.1
LARGEST_DEVIATION = 0.1  # beyond it, a line does not describe the costs
Work = Callable[[Path, PrecisionName], None]


class Line(NamedTuple):
    """A straight line through costs that grow with a size: a fixed part, and a part for each item."""

    fixed: float
    each: float
    deviation: float  # of the point furthest from the line, as a share of the line

    def at(self, size: float) -> float:
        return self.fixed + self.each * size

    @property
    def fits(self) -> bool:
        return self.deviation <= LARGEST_DEVIATION


def fit_line(sizes: Sequence[float], costs: Sequence[float]) -> Line:
    """Return the line with the least relative errors, so that small sizes count as much as large ones. None of its
    parts is below zero: nothing costs less than nothing."""
    size, cost = np.asarray(sizes, np.float64), np.asarray(costs, np.float64)
    shares = np.stack([1 / cost, size / cost], axis=1)  # the shares of both parts in each cost should add up to 1
    (fixed, each), _ = nnls(shares, np.ones(len(cost)))
    return Line(float(fixed), float(each), float(np.max(np.abs(cost / (fixed + each * size) - 1))))


@dataclass(frozen=True)
class Run:
    samples: int
    seconds: float
    megabytes: float


def calibrate(folder: Path, precision: PrecisionName) -> None:
    from enginewright.pipeline.ranges import calibrate as calibrate_stage

    params, dialect = Params.read(), ARTIFACTS / "dialect.json"
    calibrate_stage(params, Path("data"), ARTIFACTS / "simplified", folder, dialect, folder / "calibrated")


def validate(folder: Path, precision: PrecisionName) -> None:
    from enginewright.pipeline.engine import ValidatePaths
    from enginewright.pipeline.engine import validate as validate_stage

    paths = ValidatePaths(
        engine=ARTIFACTS / "engines" / precision,
        converted=ARTIFACTS / "converted" / precision,
        validation=folder,
        reference=folder,
        machine=ARTIFACTS / "machine.json",
        report=folder / "report.json",
        examples=folder / "examples",
    )
    validate_stage(Params.read(), precision, paths)


STAGES: dict[str, tuple[str, Work]] = {"calibrate": ("calibration", calibrate), "validate": ("validation", validate)}


def make_set(split: str, samples: int, folder: Path) -> None:
    """Write a set that repeats the pipeline's own images, and PyTorch's outputs for them."""
    source = ARTIFACTS / "samples" / split
    manifest = Manifest.read(source / MANIFEST)
    chosen = np.arange(samples) % len(manifest.samples)
    folder.mkdir()
    for index in range(len(manifest.inputs)):
        np.save(folder / input_file(index), np.load(source / input_file(index), mmap_mode="r")[chosen])
    manifest.model_copy(update={"samples": tuple(manifest.samples[index] for index in chosen)}).write(folder / MANIFEST)
    if split == "validation":
        reference = ARTIFACTS / "reference"
        shutil.copy(reference / "reference.json", folder)
        for index in range(len(Reference.read(reference / "reference.json").outputs)):
            np.save(folder / output_file(index), np.load(reference / output_file(index), mmap_mode="r")[chosen])


def run_once(work: Work, folder: Path, precision: PrecisionName, samples: int) -> Run:
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        work(folder, precision)
    return Run(samples, time.perf_counter() - started, peak_megabytes())


def measure(stage: str, sizes: list[int], repetitions: int, precision: PrecisionName) -> list[Run]:
    """Measure all sizes in turns, so that a disturbance does not hit one size only."""
    split, work = STAGES[stage]
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        for samples in sizes:
            make_set(split, samples, Path(scratch) / str(samples))
        for _ in range(repetitions):
            runs += [
                in_own_process(run_once, work, Path(scratch) / str(samples), precision, samples) for samples in sizes
            ]
    return [best([run for run in runs if run.samples == samples]) for samples in sizes]


def best(runs: list[Run]) -> Run:
    return Run(runs[0].samples, min(run.seconds for run in runs), max(run.megabytes for run in runs))


def misses(stage: str, runs: list[Run], line: Line) -> list[str]:
    found = []
    if not line.fits:
        found.append(f"{stage}: a time is {line.deviation:.0%} off the line, and may be {LARGEST_DEVIATION:.0%}")
    growth = runs[-1].megabytes / runs[0].megabytes
    if growth > MOST_MEMORY:
        found.append(f"{stage}: memory grew {growth:.2f} times, and may grow {MOST_MEMORY} times")
    return found


def raced_batches() -> dict[str, tuple[list[int], list[float], Line]]:
    """Return for each precision the batch sizes and p50s of the last run, and the line through them."""
    found = {}
    for entry in read_measurements("reports").precisions:
        raced = [(each.batch, each.p50) for each in entry.benchmark.latencies if each.contender == ENGINE]
        batches, milliseconds = map(list, zip(*raced, strict=True))
        found[entry.precision] = batches, milliseconds, fit_line(batches, milliseconds)
    return found


def draw(measured: dict[str, tuple[list[Run], Line]], path: Path) -> None:
    """Draw the measurements. matplotlib is imported here, or it would count as memory of the stages."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.style.context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (time_axes, memory_axes, batch_axes) = plt.subplots(1, 3, figsize=(14, 3.8), layout="constrained")
        for color, (stage, (runs, line)) in zip(("#2563eb", "#d97706"), measured.items(), strict=True):
            samples = [run.samples for run in runs]
            time_axes.plot(samples, [run.seconds for run in runs], "o", color=color)
            label = f"{stage}: {line.fixed:.2f} s + {line.each * 1000:.1f} ms an image"
            ends = [0, samples[-1]]
            time_axes.plot(ends, [line.at(end) for end in ends], color=color, label=label)
            memory_axes.plot(samples, [run.megabytes for run in runs], "o-", color=color, label=stage)
        for number, (precision, (batches, milliseconds, line)) in enumerate(raced_batches().items()):
            color = f"C{number}"
            label = f"{precision}: {line.fixed:.2f} ms + {line.each:.2f} ms an image, off by {line.deviation:.0%}"
            batch_axes.plot(batches, milliseconds, "o", color=color)
            batch_axes.plot([0, batches[-1]], [line.at(0), line.at(batches[-1])], color=color, label=label)
        panels = {  # with the room that each legend needs
            time_axes: ("seconds, and the fitted line", "images", "upper left", 1.1),
            memory_axes: ("peak memory, MB", "images", "lower left", 1.1),
            batch_axes: ("p50 of one inference, ms, and the fitted line", "batch size", "upper left", 1.5),
        }
        for axes, (title, along, place, room) in panels.items():
            axes.set(title=title, xlabel=along, xlim=(0, None), ylim=(0, room * axes.dataLim.ymax))
            axes.grid(alpha=0.25)
            axes.legend(frameon=False, loc=place)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help="images")
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--precision", default="int8", help="the engine to validate")
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/scale.png"))
    options = parser.parse_args()
    sizes = sorted(set(options.sizes))
    if len(sizes) < 3 or sizes[0] < 1 or options.repetitions < 1:
        parser.error("three sizes or more are needed, since any two lie on a line, and one repetition")

    print("| stage | samples | seconds | on the line | peak MB |")
    print("|---|---|---|---|---|", flush=True)
    measured, missed = {}, []
    for stage in STAGES:
        runs = measure(stage, sizes, options.repetitions, options.precision)
        line = fit_line(sizes, [run.seconds for run in runs])
        for run in runs:
            fitted = line.at(run.samples)
            print(f"| {stage} | {run.samples} | {run.seconds:.2f} | {fitted:.2f} | {run.megabytes:.0f} |", flush=True)
        measured[stage] = runs, line
        missed += misses(stage, runs, line)
    print()
    for stage, (runs, line) in measured.items():
        growth = runs[-1].megabytes / runs[0].megabytes
        print(
            f"{stage}: {line.fixed:.2f} s and {line.each * 1000:.2f} ms for each image, off by {line.deviation:.1%} at "
            f"most; {sizes[-1] / sizes[0]:g} times the images take {growth:.3f} times the memory."
        )
    draw(measured, options.picture)
    if missed:
        sys.exit(f"Target missed: {'; '.join(missed)}.")


if __name__ == "__main__":
    try:
        main()
    except (EnginewrightError, OSError) as error:
        sys.exit(f"scale: {error}")

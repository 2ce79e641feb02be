"""Measure the memory of each stage with more and more samples: it must not grow with the set.

It makes a project with a small network and random images of 16 pixels, as many for validation as for calibration, and
runs the stages as dvc.yaml has them, for one precision: int8 has the longest chain, fp32 no search. Memory is RssAnon
of a stage and its children, read again and again: the memory of processes without the page cache of files. Each stage
is a fork of this process, which has the libraries already, since importing them would take longest; what they take is
a part of each figure.

    python benchmarks/scale/memory.py
    python benchmarks/scale/memory.py --sizes 1000 50000 --json memory.json
    python benchmarks/scale/memory.py --precision fp32
"""

import argparse
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
from ruamel.yaml import YAML

from enginewright.core import process

ROOT = Path(__file__).parents[2]
SIDE, CLASSES, INTERVAL = 16, 1000, 0.1
NETWORK = f"""
import torch
from torch import nn


def small():
    torch.manual_seed(0)
    seen = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
    return nn.Sequential(*seen, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, {CLASSES}))
"""
SEARCHED = "int8"
LEFT_OUT = ("mix", "gate")
ALLOWED = 0.015  # relative error: so little that a search looks at all samples
LIBRARIES = (
    "torch",
    "torchvision",
    "onnx",
    "onnxruntime",
    "openvino",
    "pandas",
    "PIL.Image",
    "enginewright.pipeline.stage",
)


def make_project(folder: Path, samples: int, precision: str) -> None:
    """Lay out the pipeline, with random images in an array."""
    draw = np.random.default_rng(0)
    (folder / "photos").mkdir(parents=True)
    (folder / "nets.py").write_text(NETWORK, encoding="utf-8")
    images = draw.integers(0, 256, (2 * samples, SIDE, SIDE, 3), np.uint8)
    new = (sys.executable, "-m", "enginewright.cli", "new", "--model", "nets:small", "--images", "data/images/many.npz")
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / "data/images").mkdir(parents=True)
    np.savez(folder / "data/images/many.npz", images=images, labels=np.arange(2 * samples) % CLASSES)
    subprocess.run([*new, "--size", str(SIDE)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    yaml = YAML()
    params = yaml.load(folder / "params.yaml")
    params["samples"] |= {"validation": samples, "calibration": samples, "training": 0}
    params["precisions"] = {precision: params["precisions"][precision]}
    if precision != SEARCHED:
        params["search"] = {}
    params["benchmark"] = {"batches": [1], "requests": [1], "seconds": 0.05}
    for each in params["precisions"].values():
        each["thresholds"] = {"cosine": 0, "relative_error": ALLOWED, "agreement": 0, "metric_drop": 1}
    yaml.dump(params, folder / "params.yaml")


def commands(precision: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each stage with its arguments."""
    made_from, left_out = ("searched", ()) if precision == SEARCHED else ("simplified", ("rescue", "search"))
    for plan in ("machine/dvc.yaml", "dvc.yaml"):
        for name, stage in YAML(typ="safe").load(ROOT / plan)["stages"].items():
            if name not in LEFT_OUT + left_out:
                command = stage.get("do", stage)["cmd"].replace("${key}", precision).replace("${item.from}", made_from)
                yield name, shlex.split(command)[3:]  # after python3 -m stages


def run_stages(folder: Path, precision: str) -> Iterator[tuple[str, float]]:
    """Run the pipeline, and yield the most megabytes of each stage."""
    for name, arguments in commands(precision):
        if (child := os.fork()) == 0:
            _run(folder, arguments)
        peak = 0
        while not (status := os.waitpid(child, os.WNOHANG))[0]:
            peak = max(peak, _anonymous(child))
            time.sleep(INTERVAL)
        if status[1]:
            sys.exit(f"{name} failed, see above")
        yield name, peak / 1000


def _run(folder: Path, arguments: list[str]) -> None:
    """Run a stage, and end this process, which is a fork."""
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (folder, ROOT)))  # of the processes that it starts
    sys.path.insert(0, str(folder))
    sys.argv = ["stages", *arguments]
    process.outlive_crashes = lambda what: None  # its second process would count this one's memory again
    code = 1
    try:
        runpy.run_module("stages", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        print(ended.code if isinstance(ended.code, str) else "", file=sys.stderr)
        code = 0 if ended.code in (0, None) else 1
    finally:
        os._exit(code)


def _anonymous(pid: int) -> int:
    """Return the kilobytes of a process and its children."""
    total = 0
    try:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            found = re.search(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            total += int(found[1]) if found else 0
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        pass  # it has just ended
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs=2, default=(1000, 50_000), metavar="SAMPLES", help="500 or more")
    parser.add_argument("--precision", choices=(SEARCHED, "fp32"), default=SEARCHED)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    for library in LIBRARIES:
        __import__(library)
    peaks: dict[int, dict[str, float]] = {}
    for size in chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            make_project(Path(folder, "project"), size, chosen.precision)
            peaks[size] = {}
            for name, peak in run_stages(Path(folder, "project"), chosen.precision):
                peaks[size][name] = peak
                print(f"{size:,} samples, {name}: {peak:.0f} MB", flush=True)
    few, many = (peaks[size] for size in chosen.sizes)
    print(f"{'MB at its peak':20}" + "".join(f"{size:>12,}" for size in chosen.sizes))
    for name in few:
        print(f"{name:20}{few[name]:12.0f}{many[name]:12.0f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(peaks, indent=2) + "\n")


if __name__ == "__main__":
    main()

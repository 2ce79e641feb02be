"""Measure the memory of each stage with more and more samples: it must not grow with the set.

It makes a project with a small network and random images of 16 pixels, as many for validation as for calibration, and
runs `dvc repro` in it. Memory is RssAnon of a stage and its children, read again and again: the memory of processes
without the page cache of files.

    python benchmarks/stage_memory.py
    python benchmarks/stage_memory.py --sizes 1000 50000 --json memory.json
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
SIDE, CLASSES, INTERVAL = 16, 1000, 0.1
NETWORK = f"""
import torch
from torch import nn


def small():
    torch.manual_seed(0)
    seen = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
    return nn.Sequential(*seen, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, {CLASSES}))
"""
AS_PYTHON = """#!/bin/sh
exec {python} {script} --watch "$@"
"""


def make_project(folder: Path, samples: int) -> None:
    """Lay out the pipeline, with random images in an array."""
    draw = np.random.default_rng(0)
    (folder / "photos").mkdir(parents=True)
    (folder / "nets.py").write_text(NETWORK, encoding="utf-8")
    images = draw.integers(0, 256, (2 * samples, SIDE, SIDE, 3), np.uint8)
    new = (sys.executable, "-m", "enginery.cli", "new", "--model", "nets:small", "--images", "data/images/many.npz")
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / "data/images").mkdir(parents=True)
    np.savez(folder / "data/images/many.npz", images=images, labels=draw.integers(0, CLASSES, 2 * samples))
    subprocess.run([*new, "--size", str(SIDE)], cwd=folder, env=_environment(), check=True, stdout=subprocess.DEVNULL)
    yaml = YAML()
    params = yaml.load(folder / "params.yaml")
    params["samples"] |= {"validation": samples, "calibration": samples, "training": 0}
    params["benchmark"] |= {"batches": [1], "requests": [1], "seconds": 0.05}
    for each in params["precisions"].values():
        each["thresholds"] |= {"cosine": 0, "relative_error": 10, "agreement": 0, "metric_drop": 1}
    yaml.dump(params, folder / "params.yaml")


def run_stages(folder: Path) -> dict[str, float]:
    """Run the pipeline with a `python3` that watches each stage. Return the most megabytes of each."""
    (folder / "bin").mkdir()
    watching = folder / "bin/python3"
    watching.write_text(AS_PYTHON.format(python=sys.executable, script=__file__), encoding="utf-8")
    watching.chmod(0o755)
    path = os.pathsep.join([str(watching.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = _environment() | {"PATH": path, "WATCHED": str(folder / "watched")}
    done = subprocess.run(["dvc", "repro"], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
    rows = [line.split() for line in (folder / "watched").read_text().splitlines()]
    return {name: float(peak) for name, peak in rows}


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def watch(arguments: list[str]) -> int:
    """Run a stage, and write down the most that it and its children had."""
    stage = subprocess.Popen([sys.executable, *arguments])
    peak = 0
    while stage.poll() is None:
        peak = max(peak, _anonymous(stage.pid))
        time.sleep(INTERVAL)
    precision = arguments[arguments.index("--precision") + 1] if "--precision" in arguments else ""
    with Path(os.environ["WATCHED"]).open("a") as file:
        file.write(f"{'@'.join(filter(None, [arguments[2], precision]))} {peak / 1000:.0f}\n")
    return stage.returncode


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
    parser.add_argument("--sizes", type=int, nargs=2, default=(1000, 50_000), metavar="SAMPLES")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    peaks = {}
    for size in chosen.sizes:
        with tempfile.TemporaryDirectory() as folder:
            make_project(Path(folder, "project"), size)
            peaks[size] = run_stages(Path(folder, "project"))
    few, many = (peaks[size] for size in chosen.sizes)
    print(f"{'MB at its peak':20}" + "".join(f"{size:>12,}" for size in chosen.sizes))
    for name in few:
        print(f"{name:20}{few[name]:12.0f}{many[name]:12.0f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(peaks, indent=2) + "\n")


if __name__ == "__main__":
    if "--watch" in sys.argv[:2]:
        sys.exit(watch(sys.argv[2:]))
    main()

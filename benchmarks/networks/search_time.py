"""Time the search for what must not be quantized at the sizes that people deploy, and take its memory.

    python benchmarks/networks/search_time.py                          # ResNet-50 at 224 pixels, EfficientNet-B4 at 380
    python benchmarks/networks/search_time.py convnext_tiny --size 224

Weights are random but for the last layer, since only time is asked for. It searches twice: with thresholds that int8
keeps, and with a quarter of the error that all layers in int8 have. Memory is the peak of a process that does nothing
else, with its libraries, the graph and the samples.
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import zoo
from zoo_models import needs_of

SIZES = {"resnet50": 224, "efficientnet_b4": 380}
LIMIT, TIMES_TOO_MUCH = 3600, 4  # more seconds than it takes


def run_model(name: str, size: int) -> None:
    """Prepare a project in the current folder, and search twice in it."""
    from enginewright.core.params.all import Params
    from enginewright.pipeline.search import search
    from enginewright.precision.records import Search

    changes = needs_of(name, 0, "cpu")["changes"]
    changes["samples"] = {"training": 64, "validation": 64, "preprocessing": {"resize": size, "crop": size}}
    common = {"runtime": "openvino", "calibration": {"method": "max"}, "search": {"int8": {"seconds": LIMIT}}}
    zoo.lay_over_params(changes | common)
    allow(zoo.WIDE)
    zoo.prepare(lambda what, call: None if what == "search int8" else call())
    places = ("simplified", "calibrated", "rescued/int8", "samples/calibration", "dialect.json", "code/search.json")
    found = zoo.made_at("searched/int8.json")
    given = [*map(zoo.made_at, places), found]
    for what in ("int8 is right", f"int8 loses {TIMES_TOO_MUCH} times too much"):
        seconds, gigabytes = alone(partial(search, Params.read(), "int8", *given))
        answer = Search.read(found)
        spared = f"{len(answer.spared)} of {len(answer.layers)} layers spared"
        print(f"{name}, {size} pixels, {what}: {seconds:.1f} s, {gigabytes:.2f} GB, {spared}", flush=True)
        allow(zoo.WIDE | {"relative_error": answer.path[0].relative_error / TIMES_TOO_MUCH})


def allow(thresholds: Mapping[str, float]) -> None:
    zoo.change_params({"precisions": {"int8": {"thresholds": thresholds}}})


def alone(call: Callable[[], object]) -> tuple[float, float]:
    """Run it in a new process, and return its seconds and the gigabytes of its peak."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(timed, call).result()


def timed(call: Callable[[], object]) -> tuple[float, float]:
    started = time.perf_counter()
    call()
    # `ru_maxrss` would include the memory of the process that made this one.
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return time.perf_counter() - started, int(peak) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(SIZES))
    parser.add_argument("--size", type=int)
    options = parser.parse_args()
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["XDG_CACHE_HOME"] = folder  # no search goes on from an earlier one
            run_model(name, options.size or SIZES[name])


if __name__ == "__main__":
    main()

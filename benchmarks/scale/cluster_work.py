"""The work of `cluster.py`, a project to do it on, and what the machine itself gives: that work in independent
processes, without Ray, each on a core of its own.

    python benchmarks/scale/cluster_work.py --work calibrate --processes 4     # in the project's folder

It prints images per second, of all processes together, while all are at work. Nothing is sent or merged. What a cluster
does not reach of it, Ray and Enginewright cost; what it does not reach of so many times one process, shared cores,
caches and memory cost.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import time
from contextlib import ExitStack
from functools import partial
from itertools import count
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from enginewright.core.facts import PrecisionName
from enginewright.core.params.all import Params, overlay
from enginewright.data.run_all import Running
from enginewright.data.sample_set import AT_ONCE, Part, SampleSet, cut
from enginewright.engine.engine import running_engine
from enginewright.graph.as_written import running_graph
from enginewright.precision.calibration.calibrate import Measuring

ROOT, ARTIFACTS = Path(__file__).parents[2], Path("artifacts")
PRECISION: PrecisionName = "int8"
SECONDS_TO_OPEN = 120.0  # after which others have failed
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
# ResNet-50 at 64 pixels. Its weights are not trained: that takes an hour, and changes no time measured here.
SETTINGS: dict[str, Any] = {
    "runtime": "openvino",
    "samples": {"calibration": 256, "validation": 256, "training": 64},
    "model": {"source": "resnet50"},
    "weights": {"training": {"epochs": 0}},
    "calibration": {"method": "max"},
    "precisions": {PRECISION: {"from": "calibrated"}},
}


def make_project(folder: Path) -> None:
    """Run the stages that the work needs in a folder, unless they have been, and go there."""
    from enginewright.pipeline.build import BuildPaths, build
    from enginewright.pipeline.graphs import ConvertPaths, convert
    from enginewright.pipeline.machine import MachinePaths, machine
    from enginewright.pipeline.model import export
    from enginewright.pipeline.ranges import calibrate, simplify
    from enginewright.pipeline.samples import samples
    from enginewright.pipeline.weights import weights

    engine = ARTIFACTS / "engines" / PRECISION
    if (folder / engine).exists():
        os.chdir(folder)
        return
    shutil.rmtree(folder, ignore_errors=True)
    users = [Path("data") / name for name in ("models", "weights", "calibration", "plugins")]
    for made in (*users, engine.parent, ARTIFACTS / "samples", ARTIFACTS / "converted"):
        (folder / made).mkdir(parents=True)
    os.chdir(folder)
    yaml = YAML(typ="safe")
    params = yaml.load(ROOT / "params.yaml")
    overlay(params, SETTINGS)
    params["search"] = {}  # nor is anything rescued
    yaml.dump(params, Path("params.yaml"))
    records = [ARTIFACTS / name for name in ("machine.json", "target.json", "dialect.json", "tools.json", "task.json")]
    _, target, dialect, _, task = records
    sets = {name: ARTIFACTS / "samples" / name for name in ("training", "calibration", "validation")}
    training, calibration, validation = sets.values()
    places = ("weights", "exported", "simplified", "calibrated", "rescued", "converted")
    model, exported, simplified, calibrated, rescued, converted = (ARTIFACTS / name for name in places)
    given, converted = exported / "boxes.json", converted / PRECISION
    params = Params.read()
    cures = ARTIFACTS / "cures.json"
    tuning, tuned = ARTIFACTS / "tuning", Path("tuned")
    known = [*users, Path("cures"), tuned, *records, cures, tuning, ARTIFACTS / "code", ARTIFACTS / "parameters"]
    machine(params, MachinePaths._make(known))
    samples(params, Path("data/images"), Path("data/texts"), task, **sets)
    weights(params, Path("data/weights"), Path("data/models"), training, model)
    export(params, model, validation, exported)
    simplify(params, exported, validation, simplified, simplified.with_name("given"))
    calibrate(params, Path("data/calibration"), simplified, calibration, dialect, calibrated)
    graphs = simplified, calibrated, calibrated, rescued
    convert(params, PRECISION, ConvertPaths(*graphs, calibration, dialect, given, cures, converted))
    samples_of = validation, calibration
    plan = tuning / f"{PRECISION}.json"
    build(params, PRECISION, BuildPaths(converted, target, *samples_of, Path("data/plugins"), plan, tuned, engine))


def measuring() -> Measuring:
    return Measuring(ARTIFACTS / "simplified", Params.read().calibration.bins)


def running(precision: str) -> tuple[Running, Running]:
    engine = Running(ARTIFACTS / "engines" / precision, partial(running_engine, inference=Params.read().inference))
    return Running(ARTIFACTS / "converted" / precision, running_graph), engine


def set_and_batch(name: str) -> tuple[SampleSet, int]:
    params = Params.read()
    if name == "calibrate":
        return SampleSet.open(ARTIFACTS / "samples" / "calibration"), params.calibration.batch
    fed = SampleSet.open(ARTIFACTS / "samples" / "validation").fed_to(params.build)
    return fed, params.build.profile.batch.max


def parts_of(name: str, images: int) -> list[Part]:
    """Return parts of so many images. Those of a smaller set are repeated."""
    samples, batch = set_and_batch(name)
    order = np.arange(images) % len(samples)
    return cut(samples, [order[start : start + batch] for start in range(0, images, batch)])


def cores_first() -> list[int]:
    """Return the processors that may be used: one of each core, and then those that share a core with them."""
    usable, turn, seen = sorted(os.sched_getaffinity(0)), dict[int, int](), dict[str, int]()
    for number in usable:
        path = Path(SIBLINGS.format(number))
        core = path.read_text() if path.exists() else str(number)
        turn[number] = seen[core] = seen.get(core, -1) + 1
    return sorted(usable, key=lambda number: (turn[number], number))


def images_per_second(name: str, precision: str, processes: int, seconds: float) -> float:
    fork = multiprocessing.get_context("fork")  # nothing has threads yet, and the imports are shared
    ready, rates = fork.Barrier(processes), fork.SimpleQueue()
    all_of_them = [
        fork.Process(target=_alone, args=(name, precision, core, seconds, ready, rates))
        for core in cores_first()[:processes]
    ]
    for each in all_of_them:
        each.start()
    for each in all_of_them:
        each.join()
    if any(each.exitcode for each in all_of_them):
        sys.exit("a process failed")
    return float(sum(rates.get() for _ in all_of_them))


def _alone(name: str, precision: str, core: int, seconds: float, ready: Barrier, rates: "SimpleQueue[float]") -> None:
    parts = parts_of(name, 4 * AT_ONCE)
    with ExitStack() as opened:
        works = (measuring(),) if name == "calibrate" else running(precision)
        doing = [opened.enter_context(work.open(threads=1)) for work in works]
        for do in doing:
            do(parts[0])  # the first call takes longer
        for thread in os.listdir("/proc/self/task"):  # not before: an engine fits machines of as many cores
            os.sched_setaffinity(int(thread), [core])
        ready.wait(SECONDS_TO_OPEN)
        started, took = time.perf_counter(), 0.0
        for done in count(1):
            for do in doing:
                do(parts[done % len(parts)])
            took = time.perf_counter() - started
            if took >= seconds:
                break
        rates.put(done * AT_ONCE / took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=("calibrate", "validate"), required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--seconds", type=float, default=8)
    chosen = parser.parse_args()
    print(images_per_second(chosen.work, chosen.precision, chosen.processes, chosen.seconds))


if __name__ == "__main__":
    main()

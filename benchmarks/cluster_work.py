"""The work of `cluster.py`, and a project to do it on."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from enginewright.core.facts import PrecisionName
from enginewright.core.params.all import Params
from enginewright.core.params.edit import overlay
from enginewright.data.sample_set import Part, SampleSet, cut
from enginewright.engine.build import EngineWork
from enginewright.graph.as_written import GraphWork
from enginewright.precision.calibration.calibrate import Measuring

ROOT, ARTIFACTS = Path(__file__).parents[1], Path("artifacts")
PRECISION: PrecisionName = "int8"
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
    from enginewright.core.params.all import Params
    from enginewright.pipeline.build import build
    from enginewright.pipeline.graphs import convert
    from enginewright.pipeline.machine import machine
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
    machine(params, *(*users, *records, ARTIFACTS / "code", ARTIFACTS / "parameters"))
    samples(params, Path("data/images"), Path("data/texts"), task, **sets)
    weights(params, Path("data/weights"), Path("data/models"), training, model)
    export(params, model, validation, exported)
    simplify(params, exported, validation, simplified)
    calibrate(params, Path("data/calibration"), simplified, calibration, dialect, calibrated)
    convert(params, PRECISION, simplified, calibrated, calibrated, rescued, calibration, dialect, given, converted)
    build(params, PRECISION, converted, target, validation, Path("data/plugins"), engine)


def measuring() -> Measuring:
    return Measuring(ARTIFACTS / "simplified", Params.read().calibration.bins)


def running(precision: str) -> tuple[GraphWork, EngineWork]:
    engine = EngineWork(ARTIFACTS / "engines" / precision, Params.read().inference)
    return GraphWork(ARTIFACTS / "converted" / precision), engine


def set_and_batch(name: str) -> tuple[SampleSet, int]:
    params = Params.read()
    if name == "calibrate":
        return SampleSet.open(ARTIFACTS / "samples" / "calibration"), params.calibration.batch
    return SampleSet.open(ARTIFACTS / "samples" / "validation"), params.build.profile.batch.max


def parts_of(name: str, images: int) -> list[Part]:
    """Return parts of so many images. Those of a smaller set are repeated."""
    samples, batch = set_and_batch(name)
    order = np.arange(images) % len(samples)
    return cut(samples, [order[start : start + batch] for start in range(0, images, batch)])

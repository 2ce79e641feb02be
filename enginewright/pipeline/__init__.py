"""The stages of dvc.yaml: where each is, and how one is run. A file's stages run again together when its code changes,
so that what takes long, such as training, decoding and building, has a file of its own."""

import argparse
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from enginewright.core.errors import EnginewrightError, errors_in_words
from enginewright.core.params.all import Params
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.process import end_after

STAGES = {  # by the module of this package that has a function of the stage's name
    "machine": "machine",
    "samples": "samples",
    "weights": "weights",
    "export": "model",
    "reference": "model",
    "simplify": "ranges",
    "calibrate": "ranges",
    "rescue": "ranges",
    "convert": "graphs",
    "search": "search",
    "mix": "mix",
    "build": "build",
    "validate": "engine",
    "trace": "engine",
    "benchmark": "speed",
    "race": "speed",
    "report": "report",
    "gate": "report",
}


def stage_of(name: str) -> Callable[..., None]:
    stage: Callable[..., None] = getattr(import_module(f"{__name__}.{STAGES[name]}"), name)
    return stage


def arguments_of(stage: Callable[..., None]) -> dict[str, Any]:
    """Return the arguments of a stage, all but `params`, from the options of the command line: paths, or a text such as
    a precision. A stage with many paths has them together, as the fields of its argument `paths`."""
    kinds = {name: each.annotation for name, each in inspect.signature(stage).parameters.items() if name != "params"}
    paths = kinds.pop("paths", None)
    fields = paths._fields if paths else ()
    parser = argparse.ArgumentParser(prog=f"python3 -m stages {stage.__name__}", description=inspect.getdoc(stage))
    for name, kind in (kinds | dict.fromkeys(fields, Path)).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path if kind is Path else str, required=True)
    given = vars(parser.parse_args())
    if paths:
        given["paths"] = paths(**{name: given.pop(name) for name in fields})
    return given


def run_stage(stage: Callable[..., None]) -> None:
    """Call a stage as the command line says, with params.yaml if it takes `params`. An error that a user can cause
    becomes one line and exit code 1: DVC stops there and keeps the other results."""
    name, given = stage.__name__, arguments_of(stage)
    nothing_lost = "nothing half-written was kept. Run `dvc repro` again to go on."
    with errors_in_words(f"{name}: ", interrupted=nothing_lost):
        if "params" in inspect.signature(stage).parameters:  # all but the gate, which has no time limit either
            given["params"] = params = Params.read()
            if (precision := given.get("precision")) not in (None, *params.precisions):
                listed = ", ".join(params.precisions)
                raise EnginewrightError(f"{PARAMS_FILE} has no section precisions.{precision}; it has {listed}")
            end_after(params.timeouts.get(name))  # type: ignore[call-overload]  # any name will do
        stage(**given)

"""Build an engine without a project: in a temporary one, by the stages that its plan has."""

import atexit
import inspect
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from enginewright import open_engine
from enginewright.api.given import SOURCE, giving
from enginewright.api.inputs import Arrays, calibration_arrays, example_arrays
from enginewright.cli.project.layout import DATA, MACHINE_PLAN, PARAMS, PLAN, text_of
from enginewright.cli.recipes import edit_params
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import NO_SCORES
from enginewright.core.paths import ENGINES
from enginewright.core.precisions import PRECISIONS
from enginewright.core.scratch import scratch_folder
from enginewright.core.text import suggestion
from enginewright.engine.engine import Engine

SAMPLES = Path("data/images/given.npz")
STAGES = (
    "machine", "samples", "weights", "export", "simplify", "reference", "calibrate", "convert", "build", "validate",
)  # fmt: skip
NEEDED = ("torch", "torchvision", "onnx", "onnxruntime")
MOST = 16  # samples in a batch, if the caller does not say
NO_LIMITS = {"cosine": -1, "relative_error": sys.float_info.max, "agreement": 0, "metric_drop": 1}


def build_engine(
    model: Any,
    example_inputs: Any,
    precision: str,
    calibration: Any,
    folder: str | Path | None,
    batch: tuple[int, int, int] | None,
    runtime: str,
) -> Engine:
    kept = _require_possible(model, precision, calibration, folder)
    examples = example_arrays(model, example_inputs)
    others = {} if calibration is None else calibration_arrays(calibration, examples)
    with _temporary_project(), giving(model):
        _write_project(examples, others, precision, batch, runtime)
        for stage in STAGES:
            if stage != "calibrate" or PRECISIONS[precision].is_calibrated:
                _run(stage, precision)
        if kept is None:
            until_exit = ExitStack()
            kept = until_exit.enter_context(scratch_folder())
            atexit.register(until_exit.close)
        shutil.copytree(ENGINES / precision, kept, dirs_exist_ok=True)
    return open_engine(kept)


def _require_possible(model: Any, precision: str, calibration: Any, folder: str | Path | None) -> Path | None:
    """Refuse what cannot be, before minutes of work."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise EnginewrightError(f"build needs the package {missing[0]}: pip install 'enginewright[pipeline]'")
    if not hasattr(model, "forward"):
        raise EnginewrightError(f"model is {type(model).__name__}, not a torch.nn.Module: make it first")
    if precision not in PRECISIONS:
        raise EnginewrightError(f"precision: there is no {precision}{suggestion(precision, PRECISIONS)}")
    if PRECISIONS[precision].is_mixed:
        raise EnginewrightError(
            f"precision: {precision} is mixed of engines that a run has raced; take it from a project"
        )
    if PRECISIONS[precision].is_calibrated and calibration is None:
        raise EnginewrightError(
            f"{precision} needs calibration: some hundred samples like those that the model will get"
        )
    if folder is None:
        return None
    if (path := Path(folder).absolute()).exists():
        raise EnginewrightError(f"folder: {path} exists already: take another, or remove it")
    return path


@contextmanager
def _temporary_project() -> Iterator[None]:
    """Work in a new folder. Stages take their parameters from the folder that they run in."""
    path = list(sys.path)
    with scratch_folder() as folder, chdir(folder):
        try:
            yield
        finally:
            sys.path[:] = path


def _write_project(
    examples: Arrays, others: Arrays, precision: str, batch: tuple[int, int, int] | None, runtime: str
) -> None:
    count = len(next(iter(examples.values())))
    # Without a calibration, an example stands in its place, as there must be one. It is a real one: which samples are
    # validated on is drawn from all.
    more = others or {name: array[:1] for name, array in examples.items()}
    together = {name: np.concatenate([array, more[name]]) for name, array in examples.items()}
    for name in DATA:
        Path("data", name).mkdir(parents=True)
    np.savez(SAMPLES, **together)  # type: ignore[arg-type]  # it takes arrays by any name
    Path(PARAMS).write_text(text_of(PARAMS), encoding="utf-8")
    smallest, usual, largest = batch or (1, min(count, MOST), max(count, MOST))

    def choose(params: Any) -> None:
        params["runtime"] = runtime
        params["model"] |= {"source": SOURCE, "scores": NO_SCORES}
        params["weights"]["source"] = "given"
        params["samples"] |= {
            "source": SAMPLES.as_posix(),
            "preprocessing": None,
            "validation": count,
            "training": 0,
            "calibration": len(next(iter(together.values()))) - count,
        }
        chosen = params["precisions"].get(precision) or params["precisions"]["int8"]
        chosen |= {"from": PRECISIONS[precision].made_from[-1], "thresholds": NO_LIMITS}
        params["search"], params["precisions"] = {}, {precision: chosen}
        params["build"]["profile"]["batch"] = {"min": smallest, "opt": usual, "max": largest}
        params["benchmark"]["batches"] = [usual]

    edit_params(choose, "enginewright.build", Path(PARAMS))


def _run(stage: str, precision: str) -> None:
    """Call a stage with the arguments that the plan has for it."""
    written = {**_plan(MACHINE_PLAN), **_plan(PLAN)}[stage]
    words = written.get("do", written)["cmd"]
    for name, value in {"${key}": precision, "${item.from}": PRECISIONS[precision].made_from[-1]}.items():
        words = words.replace(name, value)
    _, _, options = words.partition(f" {stage} ")
    names, values = options.split()[::2], options.split()[1::2]
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in zip(names, values, strict=True)}
    function = getattr(import_module(f"stages.{stage}"), stage)
    kinds = {name: each.annotation for name, each in inspect.signature(function).parameters.items()}
    function(**{name: kinds[name](value) for name, value in given.items()})


def _plan(name: str) -> dict[str, Any]:
    stages: dict[str, Any] = YAML(typ="safe").load(text_of(name))["stages"]
    return stages

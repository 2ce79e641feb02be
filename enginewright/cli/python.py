"""Build an engine without a project: in a temporary one, by the stages that its plan has."""

import atexit
import copy
import inspect
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML

from enginewright import open_engine
from enginewright.cli.project.layout import DATA, MACHINE_PLAN, PLAN, text_of
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.files import ENGINES, VERDICT, scratch_folder
from enginewright.core.installing import how_to_install
from enginewright.core.params.edit import edit_params, overlay
from enginewright.core.params.model import NO_SCORES
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.text import suggestion
from enginewright.engine.engine import Engine
from enginewright.engine.machine import Machine
from enginewright.measure.changes import Measured, Verdict, read_measurements

# The model that `enginewright.build` was given, as the stages get it: from a factory.

SOURCE = f"{__name__}:model"
_given: Any = None


def model() -> Any:
    return copy.deepcopy(_given).cpu()  # so that the caller's stays in the mode and on the device that it is in


@contextmanager
def giving(given: Any) -> Iterator[None]:
    global _given
    _given = given
    try:
        yield
    finally:
        _given = None


# Turn what a caller in Python gives into arrays by the names of the model's inputs.

Arrays = dict[str, NDArray[Any]]


def example_arrays(model: Any, given: Any) -> Arrays:
    if isinstance(given, Mapping):
        return {str(name): _array(value) for name, value in given.items()}
    values = list(given) if isinstance(given, tuple | list) else [given]
    arguments = inspect.signature(model.forward).parameters.values()
    names = [each.name for each in arguments if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(values) > len(names):
        raise EnginewrightError(f"example_inputs has {len(values)} inputs, and the model's forward takes {len(names)}")
    return {name: _array(value) for name, value in zip(names, values, strict=False)}


def calibration_arrays(given: Any, examples: Arrays) -> Arrays:
    """Return all samples together. What is more in a batch, such as labels, is left out."""
    is_one = hasattr(given, "shape") or isinstance(given, Mapping) or (isinstance(given, tuple) and _are_arrays(given))
    if not is_one and not isinstance(given, Iterable):
        raise EnginewrightError(f"calibration is {type(given).__name__}: give arrays, or batches of them")
    batches = [_batch(each, examples) for each in ([given] if is_one else given)]
    if not batches:
        raise EnginewrightError("calibration has no samples")
    return {name: np.concatenate([batch[name] for batch in batches]) for name in examples}


def _are_arrays(given: Iterable[Any]) -> bool:
    return all(hasattr(each, "shape") for each in given)


def _batch(given: Any, examples: Arrays) -> Arrays:
    if not isinstance(given, Mapping):
        values = list(given) if isinstance(given, tuple | list) else [given]
        given = dict(zip(examples, values, strict=False))
    if missing := [name for name in examples if name not in given]:
        raise EnginewrightError(f"calibration has no {missing[0]}, which example_inputs has")
    batch = {name: _array(given[name]) for name in examples}
    for name, example in examples.items():
        if (got := _kind(batch[name])) != (wanted := _kind(example)):
            raise EnginewrightError(f"calibration: a batch of {name} is {got}, and example_inputs is {wanted}")
    return batch


def _kind(array: NDArray[Any]) -> str:
    """Say what all batches have in common."""
    return f"{array.dtype.name}[{', '.join(['samples', *map(str, array.shape[1:])])}]"


def _array(given: Any) -> NDArray[Any]:
    """Return a tensor of any device, or an array, with floats in the size that engines take."""
    values = (
        given.detach().cpu().float() if hasattr(given, "is_floating_point") and given.is_floating_point() else given
    )
    array = np.asarray(values.cpu() if hasattr(values, "cpu") else values)
    if array.ndim == 0:
        raise EnginewrightError(
            "example_inputs and calibration hold samples along the first axis, and here is one number"
        )
    return array.astype(np.float32) if array.dtype.kind == "f" else array


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
        raise EnginewrightError(f"build needs the package {missing[0]}: {how_to_install('pipeline')}")
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
    smallest, usual, largest = batch or (1, min(count, MOST), max(count, MOST))
    chosen = {
        "runtime": runtime,
        "model": {"source": SOURCE, "scores": NO_SCORES},
        "weights": {"source": "given"},
        "samples": {
            "source": SAMPLES.as_posix(),
            "preprocessing": None,
            "validation": count,
            "training": 0,
            "calibration": len(next(iter(together.values()))) - count,
        },
        "precisions": {precision: {"from": PRECISIONS[precision].made_from[-1], "thresholds": NO_LIMITS}},
        "build": {"profile": {"batch": {"min": smallest, "opt": usual, "max": largest}}},
        "benchmark": {"batches": [usual]},
    }
    PARAMS_FILE.write_text("{}", encoding="utf-8")
    edit_params(lambda params: overlay(params, chosen), "enginewright.build")


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


# Read what a run of the pipeline found as one value.


class Report(NamedTuple):
    recommended: str | None  # the precision to ship
    failures: dict[str, tuple[str, ...]]  # why a precision fails, by precision
    machine: Machine
    precisions: dict[str, Measured]
    offered: str | None  # in its place, where the race cannot tell which is the fastest
    doubt: str  # between which, and why


def read(folder: Path) -> Report:
    measured, verdict = read_measurements(str(folder)), Verdict.read(folder / VERDICT.name)
    by_name = {each.precision: each for each in measured.precisions}
    told = verdict.offered, verdict.doubt
    return Report(verdict.recommended, verdict.failures, measured.machine, by_name, *told)

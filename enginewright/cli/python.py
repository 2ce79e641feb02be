"""Build an engine without a project, and read a report: `import enginewright` does both."""

import atexit
import copy
import inspect
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright import open_engine
from enginewright.cli.project.layout import DATA
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, PrecisionName
from enginewright.core.files import VERDICT, scratch_folder
from enginewright.core.installing import how_to_install
from enginewright.core.params.all import Params
from enginewright.core.params.model import NO_SCORES
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.text import suggestion
from enginewright.engine.engine import Engine
from enginewright.engine.machine import Machine
from enginewright.measure.history import read_measurements
from enginewright.measure.records import Measurement, Verdict

SOURCE = f"{__name__}:model"  # a factory, from which stages get the model that `enginewright.build` was given
_given: Any = None


def model() -> Any:
    return copy.deepcopy(_given).cpu()  # so that the caller's stays in the mode and on the device that it is in


@contextmanager
def _project_of(given: Any) -> Iterator[None]:
    """Work in a new folder, so that no params.yaml and no code of the folder that the caller is in has a part."""
    global _given
    path, _given = list(sys.path), given
    try:
        with scratch_folder() as folder, chdir(folder):
            yield
    finally:
        _given, sys.path[:] = None, path


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
    are_arrays = isinstance(given, tuple) and all(hasattr(each, "shape") for each in given)
    is_one = hasattr(given, "shape") or isinstance(given, Mapping) or are_arrays
    if not is_one and not isinstance(given, Iterable):
        raise EnginewrightError(f"calibration is {type(given).__name__}: give arrays, or batches of them")
    batches = [_batch(each, examples) for each in ([given] if is_one else given)]
    if not batches:
        raise EnginewrightError("calibration has no samples")
    return {name: np.concatenate([batch[name] for batch in batches]) for name in examples}


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


NEEDED = ("torch", "torchvision", "onnx", "onnxruntime")
MOST = 16  # samples in a batch, if the caller does not say
NO_LIMITS = {"cosine": -1, "relative_error": sys.float_info.max, "agreement": 0, "metric_drop": 1}


def build_engine(
    model: Any,
    example_inputs: Any,
    precision: PrecisionName,
    calibration: Any,
    folder: str | Path | None,
    batch: tuple[int, int, int] | None,
    runtime: str,
) -> Engine:
    kept = _require_possible(model, precision, calibration, folder)
    examples = example_arrays(model, example_inputs)
    others = {} if calibration is None else calibration_arrays(calibration, examples)
    with _project_of(model):
        params = _write_project(examples, others, precision, batch, runtime)
        engine = _run_stages(params, precision)
        if kept is None:
            until_exit = ExitStack()
            kept = until_exit.enter_context(scratch_folder())
            atexit.register(until_exit.close)
        shutil.copytree(engine, kept, dirs_exist_ok=True)
    return open_engine(kept)


def _require_possible(model: Any, precision: str, calibration: Any, folder: str | Path | None) -> Path | None:
    """Refuse what cannot be, before minutes of work."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise EnginewrightError(f"build needs the package {missing[0]}, which `{how_to_install('pipeline')}` installs")
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


def _write_project(
    examples: Arrays, others: Arrays, precision: PrecisionName, batch: tuple[int, int, int] | None, runtime: str
) -> Params:
    count, file = len(next(iter(examples.values()))), Path("data/images/given.npz")
    # There must be a sample for calibration, so an example stands in its place. It is a real one, because the
    # samples that are validated on are drawn from all.
    more = others or {name: array[:1] for name, array in examples.items()}
    together = {name: np.concatenate([array, more[name]]) for name, array in examples.items()}
    for name in DATA:
        Path("data", name).mkdir(parents=True)
    np.savez(file, **together)  # type: ignore[arg-type]  # it takes arrays by any name
    smallest, usual, largest = batch or (1, min(count, MOST), max(count, MOST))
    split = {"validation": count, "training": 0, "calibration": len(next(iter(together.values()))) - count}
    chosen = {
        "runtime": runtime,
        "model": {"source": SOURCE, "scores": NO_SCORES},
        "weights": {"source": "given"},
        "samples": {"source": file.as_posix(), "preprocessing": None, **split},
        "search": {},
        "precisions": {precision: {"from": PRECISIONS[precision].made_from[-1], "thresholds": NO_LIMITS}},
        "build": {"profile": {"batch": {"min": smallest, "opt": usual, "max": largest}}},
        "benchmark": {"batches": [usual]},
    }
    params = Params.checked(chosen, "enginewright.build")
    PARAMS_FILE.write_text(json.dumps(chosen), encoding="utf-8")  # JSON is YAML
    return params


def _run_stages(params: Params, precision: PrecisionName) -> Path:
    """Run the stages that make an engine and compare it with the model. Return its folder."""
    from enginewright.pipeline.build import build
    from enginewright.pipeline.engine import validate
    from enginewright.pipeline.graphs import convert
    from enginewright.pipeline.machine import machine
    from enginewright.pipeline.model import export, reference
    from enginewright.pipeline.ranges import calibrate, simplify
    from enginewright.pipeline.samples import samples
    from enginewright.pipeline.weights import weights

    data, made = Path("data"), Path("artifacts")
    graphs = (made / name for name in ("exported", "simplified", "calibrated", "rescued", "converted"))
    exported, simplified, calibrated, rescued, converted = graphs
    records = (made / f"{name}.json" for name in ("machine", "target", "dialect", "tools", "task"))
    here, target, dialect, tools, task = records
    training, calibration, validation = (made / "samples" / name for name in ("training", "calibration", "validation"))
    models, plugins, code, parameters = data / "models", data / "plugins", made / "code", made / "parameters"
    kept, outputs, engine, boxes = made / "weights", made / "reference", made / "engine", exported / "boxes.json"
    written = here, target, dialect, tools, task, code, parameters
    machine(params, models, data / "weights", data / "calibration", plugins, *written)
    samples(params, data / "images", data / "texts", task, training, calibration, validation)
    weights(params, data / "weights", models, training, kept)
    export(params, kept, validation, exported)
    simplify(params, exported, validation, simplified)
    reference(params, kept, validation, outputs)
    made_from = simplified
    if PRECISIONS[precision].is_calibrated:
        calibrate(params, data / "calibration", simplified, calibration, dialect, calibrated)
        made_from = calibrated
    convert(params, precision, simplified, made_from, calibrated, rescued, calibration, dialect, boxes, converted)
    build(params, precision, converted, target, validation, plugins, engine)
    found = made / "validation.json", made / "examples"
    validate(params, precision, engine, converted, validation, outputs, here, *found)
    return engine


class Report(NamedTuple):
    """The findings of a run of the pipeline."""

    recommended: str | None  # the precision to ship
    failures: dict[str, tuple[str, ...]]  # why a precision fails, by precision
    machine: Machine
    precisions: dict[str, Measurement]
    offered: str | None  # in its place, where the race cannot tell which is the fastest
    doubt: str  # between which, and why


def read(folder: Path) -> Report:
    measured, verdict = read_measurements(str(folder)), Verdict.read(folder / VERDICT.name)
    by_name = {each.precision: each for each in measured.precisions}
    return Report(verdict.recommended, verdict.failures, measured.machine, by_name, verdict.offered, verdict.doubt)

"""Hold what `import enginewright` has, as docs/reference/python.md shows it: open an engine, build one without a
project, read a report, compare two runs."""

import atexit
import copy
import inspect
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright.cli.layout import DATA
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, PrecisionName, RuntimeName
from enginewright.core.files import VERDICT, scratch_folder
from enginewright.core.installing import how_to_install
from enginewright.core.params.all import Params
from enginewright.core.params.build import InferenceParams
from enginewright.core.params.model import NO_SCORES
from enginewright.core.text import suggestion
from enginewright.engine.engine import Engine
from enginewright.engine.engine import open_engine as open_checked
from enginewright.engine.machine import Machine
from enginewright.measure.comparison import Change, compare_runs
from enginewright.measure.history import read_measurements
from enginewright.measure.records import Measurement, Verdict


def open_engine(
    folder: str | Path,
    threads: int = 0,
    cuda_graph: bool = False,
    *,
    weights_on_gpu_mb: Literal["auto", "all"] | int = "auto",
) -> Engine:
    """Open the folder of an engine, such as artifacts/engines/int8, and return the engine, ready to run.

    `threads` is for a CPU; 0 means one for each core that may be used. `cuda_graph` is for a GPU: the work of each
    shape is captured once and then launched as one. `weights_on_gpu_mb` is for an engine that streams its weights: how
    many megabytes of them stay on the GPU, a number, "all", or "auto", which is what its free memory holds. An engine
    that is damaged or was built for another machine is refused with an EnginewrightError.
    """
    inference = InferenceParams(threads=threads, cuda_graph=cuda_graph, weights_on_gpu_mb=weights_on_gpu_mb)
    return open_checked(Path(folder), None, inference)


class Report(NamedTuple):
    """The findings of a run of the pipeline."""

    recommended: str | None  # the precision to ship
    failures: dict[str, tuple[str, ...]]  # why a precision fails, by precision
    machine: Machine
    precisions: dict[str, Measurement]
    offered: str | None  # in its place, where the race cannot tell which is the fastest
    doubt: str  # between which, and why


def read_report(place: str | Path = "reports") -> Report:
    """Read what a run of the pipeline found: its verdict, and the measurements of each precision.

    `place` is a reports folder."""
    measured, verdict = read_measurements(str(place)), Verdict.read(Path(place, VERDICT.name))
    by_name = {each.precision: each for each in measured.precisions}
    return Report(verdict.recommended, verdict.failures, measured.machine, by_name, verdict.offered, verdict.doubt)


def compare(before: str | Path, after: str | Path = "reports", confidence: float = 0.99) -> list[Change]:
    """Compare two runs, each a reports folder, a measurements.json or a git revision, as `enginewright compare` does.

    Each change has `precision`, `figure`, `before`, `after`, `outcome` and, as a share above 0 if the later run is
    better, `change`. `confidence` holds for all of them together."""
    return compare_runs(read_measurements(str(before)), read_measurements(str(after)), confidence)


SOURCE = f"{__name__}:model"  # a factory, from which stages get the model that `build` was given
_given: Any = None
NEEDED = ("torch", "torchvision", "onnx", "onnxruntime")
MOST = 16  # samples in a batch, if the caller does not say
NO_LIMITS = {"cosine": -1, "relative_error": sys.float_info.max, "agreement": 0, "metric_drop": 1}
Arrays = dict[str, NDArray[Any]]


def build(
    model: Any,
    example_inputs: Any,
    precision: PrecisionName = "int8",
    calibration: Any = None,
    *,
    folder: str | Path | None = None,
    batch: tuple[int, int, int] | None = None,
    runtime: RuntimeName | str = "auto",
) -> Engine:
    """Build an engine of a PyTorch model without a project, by the stages of the pipeline, and open it.

    `example_inputs` is what the model takes: a tensor or array, several in the order of `forward`, or a dictionary by
    the names of its arguments. `calibration` has samples of the same kind, at once or as an iterable of batches such as
    a DataLoader; int8, fp8 and nvfp4 need it. As many samples as there are examples are set apart, by chance, to
    compare the engine with PyTorch. What each stage finds is printed.

    `folder` is where to keep the engine for `open_engine`; without it, the engine lasts as long as this Python.
    `batch` is the smallest, the usual and the largest batch; all other sizes are those of the examples. `runtime` is
    what executes the engine, such as openvino or tensorrt.
    """
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
        raise EnginewrightError(f"precision: {precision} is mixed of engines that were raced; take it from a project")
    if PRECISIONS[precision].is_calibrated and calibration is None:
        raise EnginewrightError(f"{precision} needs calibration: some hundred samples like those that it will get")
    if folder is None:
        return None
    if (path := Path(folder).absolute()).exists():
        raise EnginewrightError(f"folder: {path} exists already: take another, or remove it")
    return path


def model() -> Any:
    return copy.deepcopy(_given).cpu()  # so that the caller's stays in the mode and on the device that it is in


@contextmanager
def _project_of(given: Any) -> Iterator[None]:
    """Work in a new folder, so that no params.yaml and no code of the folder that the caller is in has a part."""
    global _given
    here, path, _given = Path.cwd(), list(sys.path), given
    try:
        with scratch_folder() as folder:
            os.chdir(folder)
            yield
    finally:
        os.chdir(here)
        _given, sys.path[:] = None, path


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
        if (got := _kind(batch[name])) != (needed := _kind(example)):
            raise EnginewrightError(f"calibration: a batch of {name} is {got}, and example_inputs is {needed}")
    return batch


def _kind(array: NDArray[Any]) -> str:
    """Say what all batches have in common."""
    return f"{array.dtype.name}[{', '.join(['samples', *map(str, array.shape[1:])])}]"


def _array(given: Any) -> NDArray[Any]:
    """Return a tensor of any device, or an array, with floats in the size that engines take."""
    if hasattr(given, "detach"):  # a tensor of PyTorch, of whose float types NumPy does not know each
        given = given.detach().cpu()
        given = given.float() if given.is_floating_point() else given
    array = np.asarray(given)
    if array.ndim == 0:
        raise EnginewrightError(
            "example_inputs and calibration hold samples along the first axis, and here is one number"
        )
    return array.astype(np.float32) if array.dtype.kind == "f" else array


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
    return Params.checked(chosen, "enginewright.build")


def _run_stages(params: Params, precision: PrecisionName) -> Path:
    """Run the stages that make an engine and compare it with the model, in this process. Return the engine's folder."""
    from enginewright.pipeline.build import BuildPaths, build
    from enginewright.pipeline.engine import ValidatePaths, validate
    from enginewright.pipeline.graphs import ConvertPaths, convert
    from enginewright.pipeline.machine import MachinePaths, machine
    from enginewright.pipeline.model import export, reference
    from enginewright.pipeline.ranges import calibrate, simplify
    from enginewright.pipeline.samples import samples
    from enginewright.pipeline.weights import weights

    data, made = Path("data"), Path("made")
    users = {name: data / name for name in ("models", "weights", "calibration", "plugins")}
    facts = {name: made / f"{name}.json" for name in ("machine", "target", "dialect", "tools", "task", "fitting")}
    others = {name: made / name for name in ("cures", "tuned", "tuning", "code", "parameters")}
    training, calibration, validation = (made / name for name in ("training", "calibration", "validation"))
    given, exported, simplified, answers = (made / name for name in ("weights", "exported", "simplified", "reference"))
    calibrated, converted, engine = (made / name for name in ("calibrated", "converted", "engine"))
    machine(params, MachinePaths(**users, **facts, **others))
    samples(params, data / "images", data / "texts", facts["task"], training, calibration, validation)
    weights(params, users["weights"], users["models"], training, given)
    export(params, given, validation, exported)
    simplify(params, exported, validation, simplified, made / "given")
    reference(params, given, validation, answers)
    made_from = simplified
    if PRECISIONS[precision].is_calibrated:
        calibrate(params, users["calibration"], simplified, calibration, facts["dialect"], calibrated)
        made_from = calibrated
    ranges = calibrated, made / "rescued", calibration, facts["dialect"]
    rest = exported / "boxes.json", facts["fitting"], converted
    convert(params, precision, ConvertPaths(simplified, made_from, *ranges, *rest))
    tuned = others["tuning"] / f"{precision}.json", others["tuned"]
    given_to_build = converted, facts["target"], validation, calibration, users["plugins"]
    build(params, precision, BuildPaths(*given_to_build, *tuned, engine))
    found = made / "validation.json", made / "examples"
    validate(params, precision, ValidatePaths(engine, converted, validation, answers, facts["machine"], *found))
    return engine

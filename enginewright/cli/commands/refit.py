"""`enginewright refit`: put other weights into an engine, and prove that they arrived."""

import os
import shutil
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import cast

from enginewright.cli.arguments import FILE, FOLDER, add_engine, add_path
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES
from enginewright.core.files import new_folder, sha256
from enginewright.core.params.build import InferenceParams
from enginewright.data.feeds import Feeds
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import Machine, require_fits
from enginewright.engine.record import RECORD, REPRODUCE, WEIGHTS, EngineRecord, read_engine
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.engine.runtimes.tensorrt import PLAN, TensorRT
from enginewright.engine.tools import COMPARISON, INPUTS, comparison_script, least_cosine, reproduce_script
from enginewright.graph.as_written import run_as_written
from enginewright.graph.files import data_of, graph_bytes, graph_files, graph_sha256
from enginewright.graph.onnx_file import load_graph, sha256_without_weights
from enginewright.measure.agreement import compare
from enginewright.measure.records import Errors

EXAMPLES = """\
examples:
  enginewright refit artifacts/engines/fp16 new/model.onnx --out engines/tuned

For engines of TensorRT with build.tensorrt.refit. The graph must be the same
but for its weights, in the precision of the engine. Exits 1 if the new engine
does not compute what its graph means."""


def add_arguments(command: ArgumentParser) -> None:
    add_engine(command)
    add_path(command, "onnx", FILE, metavar="ONNX", help="the graph that has the weights")
    add_path(command, "--out", FOLDER, required=True, metavar="FOLDER", help="the folder of the new engine")


def run(chosen: Namespace) -> int:
    print(f"{chosen.out}: {refit_engine(chosen.engine, chosen.onnx, chosen.out)}")
    return 0


def refit_engine(folder: Path, onnx: Path, out: Path) -> str:
    """Write the engine with the weights of another graph into a new folder. Return how near it is to that graph. NVIDIA
    knows of engines that lose a bias when they are refitted. So it is run on the samples that lie beside the engine,
    and is refused unless it computes what the graph means."""
    record = read_engine(folder)
    _require_possible(record, folder, onnx, out)
    machine = describe_machine(record.target.runtime)
    require_fits(record.target, machine, folder)
    with new_folder(out.resolve()) as unfinished:
        _write(record, folder, onnx, unfinished, out.resolve())
        errors = _errors(unfinished, machine, onnx)
        if errors.nonfinite or errors.cosine < (least := least_cosine(record.precision)):
            raise EnginewrightError(
                f"{folder} takes the weights of {onnx}, but does not compute what that graph means: its cosine is "
                f"{errors.cosine:.6f}, and {least} is the least: build the engine anew from that graph, by `dvc repro`"
            )
    return f"relative error to {onnx} {errors.relative:.1e}, cosine {errors.cosine:.6f}"


def _require_possible(record: EngineRecord, folder: Path, onnx: Path, out: Path) -> None:
    if not (RUNTIMES[record.target.runtime].is_tensorrt and record.build.tensorrt.refit):
        raise EnginewrightError(
            f"{folder} takes no other weights: set build.tensorrt.refit to true, and build it again with TensorRT"
        )
    if not (folder / INPUTS).is_file():
        raise EnginewrightError(
            f"{folder / INPUTS} is missing, whose samples show whether weights arrive: give one that `dvc repro` made"
        )
    if out.exists():
        raise EnginewrightError(f"{out} exists already: give another folder with --out")
    if sha256_without_weights(load_graph(onnx)) != record.graph_sha256:
        raise EnginewrightError(
            f"{onnx} is not the graph of {folder} with other weights: it has other nodes, names, shapes or indices; "
            "build an engine of it, by `dvc repro`"
        )


def _write(record: EngineRecord, folder: Path, onnx: Path, unfinished: Path, place: Path) -> None:
    for name in (*record.files.keys() - {PLAN}, INPUTS):
        shutil.copyfile(folder / name, unfinished / name)
    _write_plan(cast(TensorRT, load_runtime(record.target.runtime)), record, folder, onnx, unfinished)
    weights = {}
    if record.build.tensorrt.is_stripped:
        weights = {WEIGHTS: onnx} | {file.name: file for file in graph_files(onnx) if file == data_of(onnx)}
    for name, file in weights.items():
        shutil.copyfile(file, unfinished / name)
    changes = {
        "files": {name: sha256(unfinished / name) for name in record.files},
        "bytes": record.bytes + (unfinished / PLAN).stat().st_size - (folder / PLAN).stat().st_size,
        "weights": {name: sha256(unfinished / name) for name in weights},
        "onnx_sha256": graph_sha256(onnx),
        "onnx_bytes": graph_bytes(onnx),
    }
    refitted = record.model_copy(update=changes)
    refitted.write(unfinished / RECORD)
    script = reproduce_script(refitted, os.path.relpath(onnx, place))
    (unfinished / REPRODUCE).write_text(script, encoding="utf-8")
    if not weights:
        (unfinished / COMPARISON).write_text(comparison_script(refitted, onnx, place), encoding="utf-8")


def _write_plan(library: TensorRT, record: EngineRecord, folder: Path, onnx: Path, refitted: Path) -> None:
    """Write the plan with other weights. One that has none stays as it is."""
    if record.build.tensorrt.is_stripped:
        shutil.copyfile(folder / PLAN, refitted / PLAN)
        return
    trt, engine = library.trt, library.deserialized(folder / PLAN, record.build)
    library.put_in(engine, onnx)
    settings = engine.create_serialization_config()
    settings.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    if hasattr(trt.SerializationFlag, "INCLUDE_REFIT"):  # later than 10.9: the next weights can be put in as well
        settings.set_flag(trt.SerializationFlag.INCLUDE_REFIT)
    plan = engine.serialize_with_config(settings)
    if plan is None:
        why = library.why()
        raise EnginewrightError(f"{library.title} cannot write the engine with the weights of {onnx}: {why}")
    (refitted / PLAN).write_bytes(plan)


def _errors(folder: Path, machine: Machine, onnx: Path) -> Errors:
    """Return the errors of the engine over its samples: the worst of each kind."""
    from polygraphy.json import load_json

    meant, found = run_as_written(onnx), []
    with open_engine(folder, machine, InferenceParams(threads=0, cuda_graph=False)) as engine:
        for feeds in load_json(str(folder / INPUTS)):
            given: Feeds = dict(feeds)
            found.append(compare(meant(given), engine.run(given)))
    return max(found, key=lambda errors: (errors.nonfinite, -errors.cosine))

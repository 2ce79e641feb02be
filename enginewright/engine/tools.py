"""Scripts that measure an engine with NVIDIA's own tools, and the versions of the libraries that shape a graph."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from enginewright.core.facts import RUNTIMES
from enginewright.core.files import Record, templates_in
from enginewright.core.params.build import Bound, TilingLevel
from enginewright.data.feeds import BATCH, Feeds
from enginewright.engine.record import TUNED_GRAPH, EngineRecord
from enginewright.graph.interface import TensorSpec

INDICES = ("int32", "int64")  # the types that Gather and its like read
INPUTS, COMPARISON = "inputs.json", "polygraphy.sh"
COMPARED = ("tensorrt", "tensorrt_rtx", "onnxruntime")  # the runtimes that Polygraphy has, too
COSINE = {"fp32": 0.99999, "fp16": 0.9999, "bf16": 0.999}  # by default what the thresholds of params.yaml ask for
COSINE_OF_QUANTIZED = 0.99
TOOLS = (
    "numpy", "pillow", "scikit-learn", "torch", "torchvision", "onnx", "onnxscript", "onnxsim", "polygraphy",
    "onnxruntime-gpu", "onnxruntime", "nvidia-modelopt", "onnx-ir", "onnxslim", "ml_dtypes", "onnx-graphsurgeon",
    "onnxconverter-common",
)  # fmt: skip


def reproduce_script(record: EngineRecord, onnx: str) -> str:
    """Return a script that repeats the build with NVIDIA's own command, and times both engines with it. `onnx` is the
    path of the graph from the engine's folder."""
    target, options, inputs = record.target, record.build.tensorrt, record.interface.inputs
    is_rtx, version = target.runtime == "tensorrt_rtx", tuple(map(int, target.runtime_version.split(".")))
    tuned, profiles = record.profile.at("opt"), record.build.all_profiles
    # trtexec refuses shapes for a graph that has none. It takes values that hold sizes in the place of a shape.
    varying = [s for s in inputs if s.values or any(isinstance(size, str) for size in s.shape)]
    bounds = [{bound: _shapes(varying, each.at(bound)) for bound in get_args(Bound)} for each in profiles]
    indices = [spec for spec in inputs if spec.dtype in INDICES and not spec.values]
    files = (f'{shlex.quote(spec.name)}:"$scratch"/{number}' for number, spec in enumerate(indices))
    return _rendered(
        "reproduce.sh.j2",
        target=target,
        build=record.build,
        options=options,
        onnx=shlex.quote(TUNED_GRAPH if TUNED_GRAPH in record.files else onnx),
        command=RUNTIMES[target.runtime].trtexec,
        rtx=is_rtx,
        version=version,
        # Such a plan is loaded by its own version alone.
        number=10000 * version[0] + 100 * version[1] + version[2] if not is_rtx and not target.or_newer else None,
        is_old=version < ((1, 5) if is_rtx else (11,)),  # later versions leave the copies out by default
        plugins=shlex.join(options.plugin_names),
        batch=record.profile.batch.opt if any(BATCH in spec.shape for spec in inputs) else None,
        choices=list(_choices(record)),
        batched=sum(BATCH in spec.shape for spec in inputs),
        profiles=bounds if varying else [],
        shapes=_shapes(varying, tuned | {BATCH: "${batch}"}),
        # By itself, trtexec would make up indices from -128 to 127, and read outside of tables. 0 is in every table.
        zeros=[" * ".join([str(np.dtype(s.dtype).itemsize), *_shape(s, tuned | {BATCH: "batch"})]) for s in indices],
        inputs=",".join(files),
        route=shlex.quote(options.build_route or ""),
        tiling=get_args(TilingLevel).index(options.tiling_optimization_level),
    )


def _choices(record: EngineRecord) -> Iterator[str]:
    """Yield, for each profile that has the other sizes, its number, batch sizes, and how far its other sizes are."""
    sizes = {axis: size for axis, size in record.profile.at("opt").items() if axis != BATCH}
    axes = [str(axis) for s in record.interface.inputs for axis in (*s.shape, *s.values) if axis in sizes]
    for number, profile in enumerate(record.build.all_profiles):
        if all(size in profile.ranges[axis] for axis, size in sizes.items()):
            batch, other = profile.batch, sum(abs(sizes[axis] - profile.ranges[axis].opt) for axis in axes)
            yield f"{number} {batch.min} {batch.opt} {batch.max} {other}"


def _shapes(specs: Iterable[TensorSpec], sizes: Mapping[str, object]) -> str:
    return ",".join(f"{shlex.quote(spec.name)}:{'x'.join(_shape(spec, sizes))}" for spec in specs)


def _shape(spec: TensorSpec, sizes: Mapping[str, object]) -> list[str]:
    return [str(sizes[size] if isinstance(size, str) else size) for size in spec.values or spec.shape]


def write_comparison(record: EngineRecord, onnx: Path, feeds: Iterable[Feeds], folder: Path) -> None:
    """Write a script that compares an engine with its graph by Polygraphy, and its inputs, if Polygraphy can run such
    engines: it cannot put weights into a plan that has none. `enginewright refit` reads the inputs, too."""
    if record.target.runtime not in COMPARED:
        return
    from polygraphy.json import save_json  # here, because all that opens an engine would wait for this import

    save_json([dict(feed) for feed in feeds], str(folder / INPUTS), description=None)
    if not record.weights:
        (folder / COMPARISON).write_text(comparison_script(record, onnx, folder), encoding="utf-8")


def comparison_script(record: EngineRecord, onnx: Path, folder: Path) -> str:
    """Return the script for an engine that is, or will be, in the folder."""
    from enginewright.graph.as_written import twin_of  # here: a light installation writes the other script alone
    from enginewright.graph.onnx_file import load_graph

    plugins = [shlex.quote(f"./{name}") for name in record.build.tensorrt.plugin_names]
    engine = ["engine.plan", "--trt", "--model-type engine", *([f"--plugins {' '.join(plugins)}"] if plugins else [])]
    if record.target.runtime == "onnxruntime":  # the engine is optimized already
        provider = "CUDAExecutionProvider" if record.target.device == "cuda" else "CPUExecutionProvider"
        engine = ["engine.onnx", "--onnxrt", f"--providers {provider}", "--graph-optimization-level ORT_DISABLE_ALL"]
    return _rendered(
        "polygraphy.sh.j2",
        name=COMPARISON,
        rtx=record.target.runtime == "tensorrt_rtx",
        has_twin=twin_of(load_graph(onnx)) is not None,
        onnx=shlex.quote(os.path.relpath(onnx, folder)),
        inputs=INPUTS,
        read=[shlex.quote(spec.name) for spec in record.interface.outputs] if record.apart else [],
        engine=engine,
        cosine=least_cosine(record.precision),
    )


def least_cosine(precision: str) -> float:
    return COSINE.get(precision, COSINE_OF_QUANTIZED)


def _rendered(template: str, **facts: object) -> str:
    return templates_in(Path(__file__).parent).get_template(template).render(facts)


class Tools(Record):
    """The installed versions by library. A new version of one makes new files."""

    versions: dict[str, str]

"""Scripts that measure an engine with NVIDIA's own tools, and the versions of the libraries that shape a graph."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from enginewright.core.facts import RUNTIMES
from enginewright.core.files import Record
from enginewright.core.params.build import Bound, TilingLevel
from enginewright.core.templates import templates_in
from enginewright.core.version import installed_version
from enginewright.data.feeds import BATCH, Feeds
from enginewright.engine.record import EngineRecord
from enginewright.graph.interface import TensorSpec

COMPATIBILITY = {"same_compute_capability": "sameComputeCapability", "ampere_plus": "ampere+"}
BROUGHT_BY = {
    "tensorrt": "NVIDIA's deb, rpm, tar and zip packages of TensorRT bring it, and its containers in /opt/tensorrt/bin",
    "tensorrt_rtx": "NVIDIA's tar and zip packages of TensorRT for RTX bring it",
}
INDICES = ("int32", "int64")  # the types that Gather and its like read
INPUTS, COMPARISON = "inputs.json", "polygraphy.sh"
COMPARED = ("tensorrt", "tensorrt_rtx", "onnxruntime")  # the runtimes that Polygraphy has, too
COSINE = {"fp32": 0.99999, "fp16": 0.9999, "bf16": 0.999}  # by default what the thresholds of params.yaml ask for
COSINE_OF_QUANTIZED = 0.99
TOOLS = (
    "numpy", "pillow", "scikit-learn", "torch", "torchvision", "onnx", "onnxscript", "onnxsim", "polygraphy",
    "onnxruntime-gpu", "onnxruntime", "nvidia-modelopt",
)  # fmt: skip


def reproduce_script(record: EngineRecord, onnx: str) -> str:
    """Return a script that repeats the build with NVIDIA's own command, and times both engines with it. `onnx` is the
    path of the graph as seen from the engine's folder."""
    target, options, inputs = record.target, record.build.tensorrt, record.interface.inputs
    version, varies = _version(record), any(BATCH in spec.shape for spec in inputs)
    by_number = not _is_rtx(record) and not target.or_newer  # such a plan is loaded by its own version alone
    tuned = record.profile.at("opt") | {BATCH: "batch"}
    return _rendered(
        "reproduce.sh.j2",
        command=RUNTIMES[target.runtime].trtexec,
        runtime=target.runtime,
        version=target.runtime_version,
        brought_by=BROUGHT_BY[target.runtime],
        number=10000 * version[0] + 100 * version[1] + version[2] if by_number else None,
        lacks_refit=options.is_stripped and not _is_rtx(record) and version < (10, 14),
        streaming=options.streaming,
        plugins=shlex.join(options.plugin_names),
        batch=record.profile.batch.opt if varies else None,
        choices=list(_choices(record)) if varies and len(record.build.all_profiles) > 1 else None,
        batched=sum(BATCH in spec.shape for spec in inputs),
        # By itself, trtexec would make up indices from -128 to 127, and read outside of tables. 0 is in every table.
        zeros=[" * ".join([str(np.dtype(s.dtype).itemsize), *_shape(s, tuned)]) for s in _indices(record)],
        build=_build_options(record, onnx),
        run=_run_options(record, onnx),
    )


def _build_options(record: EngineRecord, onnx: str) -> list[str]:
    build, options = record.build, record.build.tensorrt
    flags = [
        f"--onnx={shlex.quote(onnx)}",
        '--saveEngine="$scratch"/reproduced.plan',
        *_profiles(record),
        f"--builderOptimizationLevel={options.optimization_level}",
        "--profilingVerbosity=detailed",
        "--skipInference",
    ]
    if options.workspace_mb is not None:
        flags.append(f"--memPoolSize=workspace:{options.workspace_mb}M")
    if not build.tf32:
        flags.append("--noTF32")
    if options.plugins:
        flags.append('"${plugins[@]}"')
        if _is_rtx(record) or _version(record) >= (10, 15):
            flags.append("--enablePluginOverride")
    if options.tiling_optimization_level != "none":
        flags.append(f"--tilingOptimizationLevel={get_args(TilingLevel).index(options.tiling_optimization_level)}")
    if options.max_aux_streams is not None:
        flags.append(f"--maxAuxStreams={options.max_aux_streams}")
    more = {"stripWeights": options.is_stripped, "refit": options.refit, "allowWeightStreaming": options.streaming}
    flags += [f"--{flag}" for flag, is_set in more.items() if is_set]
    if _is_rtx(record):
        listed = ",".join(capability.replace(".", "") for capability in record.target.capabilities)
        return [*flags, f"--computeCapabilities={listed}"]
    flags.append(f"--avgTiming={options.avg_timing_iterations}")
    if _version(record) < (11,):  # from 11 on, every network is strongly typed
        flags.append("--stronglyTyped")
    if options.hardware_compatibility != "none":
        flags.append(f"--hardwareCompatibilityLevel={COMPATIBILITY[options.hardware_compatibility]}")
    return [*flags, "--versionCompatible"] if options.version_compatible else flags


def _run_options(record: EngineRecord, onnx: str) -> list[str]:
    """Return the options for timing an engine as the report does: replayed, with its copies."""
    options, is_rtx = record.build.tensorrt, _is_rtx(record)
    is_old = _version(record) < ((1, 5) if is_rtx else (11,))  # later versions leave the copies out by default
    flags = ['--loadEngine="$plan"']
    if _varying(record):
        flags.append(f"--shapes={_shapes(record, record.profile.at('opt') | {BATCH: '${batch}'})}")
    if len(record.build.all_profiles) > 1 and any(BATCH in spec.shape for spec in record.interface.inputs):
        flags.append('--useProfile="$profile"')
    if indices := _indices(record):
        files = (f'{shlex.quote(spec.name)}:"$scratch"/{number}' for number, spec in enumerate(indices))
        flags.append(f"--loadInputs={','.join(files)}")
    if options.plugins:
        flags.append('"${plugins[@]}"')
    if options.is_stripped:
        flags += ["--refit", f"--refitFromOnnx={shlex.quote(onnx)}"]
    if options.streaming:
        flags += ["--allowWeightStreaming", '--weightStreamingBudget="$budget"']
    flags += ["--warmUp=200", "--duration=3", "--useSpinWait" if is_old else "--includeDataTransfers"]
    if is_rtx:
        return [*flags, "--rtxCudaGraphStrategy=wholeGraph", "--specializeStrategyDS=eager"]
    if is_old:
        flags.append("--useCudaGraph")
    return [*flags, "--versionCompatible"] if options.version_compatible else flags


def _is_rtx(record: EngineRecord) -> bool:
    return record.target.runtime == "tensorrt_rtx"


def _version(record: EngineRecord) -> tuple[int, ...]:
    return tuple(map(int, record.target.runtime_version.split(".")))


def _varying(record: EngineRecord) -> list[TensorSpec]:
    """Return the inputs whose shape varies, since trtexec refuses shapes for a graph that has none, and those that hold
    sizes, whose values trtexec takes in the place of a shape."""
    return [s for s in record.interface.inputs if s.values or any(isinstance(size, str) for size in s.shape)]


def _indices(record: EngineRecord) -> list[TensorSpec]:
    return [spec for spec in record.interface.inputs if spec.dtype in INDICES and not spec.values]


def _profiles(record: EngineRecord) -> Iterator[str]:
    """Yield the sizes of each profile, after its number, which a single one does not need."""
    profiles = record.build.all_profiles if _varying(record) else ()
    for number, profile in enumerate(profiles):
        yield from [f"--profile={number}"] if len(profiles) > 1 else []
        yield from (f"--{bound}Shapes={_shapes(record, profile.at(bound))}" for bound in get_args(Bound))


def _choices(record: EngineRecord) -> Iterator[str]:
    """Yield, for each profile that has the other sizes, its number, batch sizes, and how far its other sizes are."""
    sizes = {axis: size for axis, size in record.profile.at("opt").items() if axis != BATCH}
    axes = [str(axis) for s in record.interface.inputs for axis in (*s.shape, *s.values) if axis in sizes]
    for number, profile in enumerate(record.build.all_profiles):
        if all(size in profile.ranges[axis] for axis, size in sizes.items()):
            batch, other = profile.batch, sum(abs(sizes[axis] - profile.ranges[axis].opt) for axis in axes)
            yield f"{number} {batch.min} {batch.opt} {batch.max} {other}"


def _shapes(record: EngineRecord, sizes: Mapping[str, object]) -> str:
    return ",".join(f"{shlex.quote(spec.name)}:{'x'.join(_shape(spec, sizes))}" for spec in _varying(record))


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
        rtx=_is_rtx(record),
        has_twin=twin_of(load_graph(onnx)) is not None,
        onnx=shlex.quote(os.path.relpath(onnx, folder)),
        inputs=INPUTS,
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


def describe_tools() -> Tools:
    return Tools(versions={tool: version for tool in TOOLS if (version := installed_version(tool))})

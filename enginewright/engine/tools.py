"""Write a script that repeats a build with NVIDIA's own command, and times both engines with it."""

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np

from enginewright.core.facts import RUNTIMES
from enginewright.core.files import Record
from enginewright.core.params.build import Bound, TilingLevel
from enginewright.core.version import installed_version
from enginewright.data.feeds import BATCH, Feeds
from enginewright.engine.record import EngineRecord
from enginewright.graph.interface import TensorSpec

COMPATIBILITY = {"same_compute_capability": "sameComputeCapability", "ampere_plus": "ampere+"}
BROUGHT_BY = {
    "tensorrt": "NVIDIA's deb, rpm, tar and zip packages of TensorRT bring it, and its containers in /opt/tensorrt/bin",
    "tensorrt_rtx": "NVIDIA's tar and zip packages of TensorRT for RTX bring it",
}
LOADED_PLUGINS = '"${plugins[@]}"'
INDICES = ("int32", "int64")  # the types that Gather and its like read
SCRIPT = """\
#!/usr/bin/env bash
# Build the same graph with {command} of {runtime} {version}, and time this engine and that one by its clock.
# Usage: bash reproduce.sh{usage}
set -euo pipefail
cd "$(dirname "$0")"
fail() {{ echo "$1" >&2; exit 1; }}
command -v {command} >/dev/null || fail "{command} is not on the PATH, and pip does not install it: {brought_by}"
{prepare}
{command} {build}

for plan in engine.plan "$scratch"/reproduced.plan; do
    {command} {run}
done
"""
SAME_VERSION = """\
found=$({command} --help | grep -o -m 1 'TensorRT v[0-9]*' || true)
[ "${{found:-TensorRT v{number}}}" = "TensorRT v{number}" ] ||
    fail "this {command} is of $found, and engine.plan can be loaded by TensorRT v{number} alone"
"""
# The names of functions are in a library between zeros. It hands its plugins to TensorRT, or registers them by itself.
PLUGINS = """\
plugins=()
for library in {libraries}; do
    grep -qazx -e getCreators -e getPluginCreators "$library" && how=dynamic || how=static
    plugins+=("--${{how}}Plugins=$PWD/$library")
done
"""
LACKS_REFIT = """\
fail "{command} of {version} cannot put weights into a plan that has none: 10.14 and newer can, by --refitFromOnnx"
"""
BUDGET = """\
budget=${WEIGHTS_ON_GPU:--1} # how much of the weights stays on the GPU: bytes, 500M, 20%, or -1, as {command} decides
"""
# The engine chooses in the same way.
CHOICE = """\
profile=0 nearest=
while read -r number least opt most other; do
    ((least <= batch && batch <= most)) || continue
    distance=$(((batch > opt ? batch - opt : opt - batch) * {batched} + other))
    if [ -z "$nearest" ] || ((distance < nearest)); then profile=$number nearest=$distance; fi
done <<'PROFILES'
{rows}
PROFILES
"""
SCRATCH = """\
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"""


def reproduce_script(record: EngineRecord, onnx: str) -> str:
    """Return the script. `onnx` is the path of the graph as seen from the engine's folder."""
    command = RUNTIMES[record.target.runtime].trtexec
    return SCRIPT.format(
        command=command,
        runtime=record.target.runtime,
        version=record.target.runtime_version,
        usage=" [batch size]" if _varies(record) else "",
        brought_by=BROUGHT_BY[record.target.runtime],
        prepare="".join(_preparations(record)),
        build=" \\\n    ".join(build_options(record, onnx)),
        run=" \\\n        ".join(run_options(record, onnx)),
    )


def _preparations(record: EngineRecord) -> list[str]:
    lines = []
    if not _is_rtx(record) and not record.target.or_newer:
        major, minor, patch = _version(record)[:3]
        command = RUNTIMES[record.target.runtime].trtexec
        lines.append(SAME_VERSION.format(command=command, number=10000 * major + 100 * minor + patch))
    if record.build.tensorrt.is_stripped and not _is_rtx(record) and _version(record) < (10, 14):
        lines.append(LACKS_REFIT.format(command="trtexec", version=record.target.runtime_version))
    if record.build.tensorrt.streaming:
        lines.append(BUDGET.replace("{command}", str(RUNTIMES[record.target.runtime].trtexec)))
    if names := record.build.tensorrt.plugin_names:
        lines.append(PLUGINS.format(libraries=shlex.join(names)))
    lines.append(SCRATCH)
    if _varies(record):
        lines.append(f"batch=${{1:-{record.profile.batch.opt}}}\n")
    if _chooses(record):
        batched = sum(BATCH in spec.shape for spec in record.interface.inputs)
        lines.append(CHOICE.format(rows="\n".join(_choices(record)), batched=batched))
    for number, spec in enumerate(_indices(record)):
        factors = [str(np.dtype(spec.dtype).itemsize), *_shape(spec, record.profile.at("opt") | {BATCH: "batch"})]
        # By itself, trtexec would make up indices from -128 to 127, and read outside of tables. 0 is in every table.
        lines.append(f'head -c $(({" * ".join(factors)})) /dev/zero > "$scratch"/{number}\n')
    return lines


def build_options(record: EngineRecord, onnx: str) -> list[str]:
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
        flags.append(LOADED_PLUGINS)
        if _is_rtx(record) or _version(record) >= (10, 15):
            flags.append("--enablePluginOverride")
    if options.tiling_optimization_level != "none":
        flags.append(f"--tilingOptimizationLevel={get_args(TilingLevel).index(options.tiling_optimization_level)}")
    if options.max_aux_streams is not None:
        flags.append(f"--maxAuxStreams={options.max_aux_streams}")
    more = {"stripWeights": options.is_stripped, "refit": options.refit, "allowWeightStreaming": options.streaming}
    flags += [f"--{flag}" for flag, is_wanted in more.items() if is_wanted]
    if _is_rtx(record):
        listed = ",".join(capability.replace(".", "") for capability in record.target.capabilities)
        return [*flags, f"--computeCapabilities={listed}"]
    flags.append(f"--avgTiming={options.avg_timing_iterations}")
    if _version(record) < (11,):  # from 11 on, every network is strongly typed
        flags.append("--stronglyTyped")
    if options.hardware_compatibility != "none":
        flags.append(f"--hardwareCompatibilityLevel={COMPATIBILITY[options.hardware_compatibility]}")
    return [*flags, "--versionCompatible"] if options.version_compatible else flags


def run_options(record: EngineRecord, onnx: str) -> list[str]:
    """Return the options for timing an engine as the report does: replayed, with its copies."""
    is_rtx = _is_rtx(record)
    is_old = _version(record) < ((1, 5) if is_rtx else (11,))  # later versions leave the copies out by default
    flags = ['--loadEngine="$plan"']
    if _varying(record):
        flags.append(f"--shapes={_shapes(record, _timed_sizes(record))}")
    if _chooses(record):
        flags.append('--useProfile="$profile"')
    if indices := _indices(record):
        files = (f'{shlex.quote(spec.name)}:"$scratch"/{number}' for number, spec in enumerate(indices))
        flags.append(f"--loadInputs={','.join(files)}")
    if record.build.tensorrt.plugins:
        flags.append(LOADED_PLUGINS)
    if record.build.tensorrt.is_stripped:
        flags += ["--refit", f"--refitFromOnnx={shlex.quote(onnx)}"]
    if record.build.tensorrt.streaming:
        flags += ["--allowWeightStreaming", '--weightStreamingBudget="$budget"']
    flags += ["--warmUp=200", "--duration=3"]
    flags.append("--useSpinWait" if is_old else "--includeDataTransfers")
    if is_rtx:
        return [*flags, "--rtxCudaGraphStrategy=wholeGraph", "--specializeStrategyDS=eager"]
    if is_old:
        flags.append("--useCudaGraph")
    if record.build.tensorrt.version_compatible:
        flags.append("--versionCompatible")
    return flags


def _is_rtx(record: EngineRecord) -> bool:
    return record.target.runtime == "tensorrt_rtx"


def _version(record: EngineRecord) -> tuple[int, ...]:
    return tuple(map(int, record.target.runtime_version.split(".")))


def _varies(record: EngineRecord) -> bool:
    """Tell whether the batch varies."""
    return any(BATCH in spec.shape for spec in record.interface.inputs)


def _varying(record: EngineRecord) -> list[TensorSpec]:
    """Return the inputs whose shape varies, since trtexec refuses shapes for a graph that has none, and those that hold
    sizes, whose values trtexec takes in the place of a shape."""
    return [s for s in record.interface.inputs if s.values or any(isinstance(size, str) for size in s.shape)]


def _indices(record: EngineRecord) -> list[TensorSpec]:
    return [spec for spec in record.interface.inputs if spec.dtype in INDICES and not spec.values]


def _profiles(record: EngineRecord) -> Iterable[str]:
    """Yield the sizes of each profile, after its number, which a single one does not need."""
    profiles = record.build.all_profiles if _varying(record) else ()
    for number, profile in enumerate(profiles):
        yield from [f"--profile={number}"] if len(profiles) > 1 else []
        yield from (f"--{bound}Shapes={_shapes(record, profile.at(bound))}" for bound in get_args(Bound))


def _chooses(record: EngineRecord) -> bool:
    """Tell whether another profile may serve the batch size that is timed."""
    return _varies(record) and len(record.build.all_profiles) > 1


def _choices(record: EngineRecord) -> Iterable[str]:
    """Yield, for each profile that has the other sizes, its number, batch sizes, and how far its other sizes are."""
    sizes = {axis: size for axis, size in record.profile.at("opt").items() if axis != BATCH}
    for number, profile in enumerate(record.build.all_profiles):
        if all(size in profile.ranges[axis] for axis, size in sizes.items()):
            tuned, batch = profile.at("opt"), profile.batch
            axes = (axis for s in record.interface.inputs for axis in (*s.shape, *s.values) if axis in sizes)
            other = sum(abs(sizes[str(axis)] - tuned[str(axis)]) for axis in axes)
            yield f"{number} {batch.min} {batch.opt} {batch.max} {other}"


def _timed_sizes(record: EngineRecord) -> dict[str, int | str]:
    """Return the sizes at which engines are timed. The batch is a variable of the script."""
    return {**record.profile.at("opt"), BATCH: "${batch}"}


def _shapes(record: EngineRecord, sizes: Mapping[str, int | str]) -> str:
    shapes = ((spec.name, _shape(spec, sizes)) for spec in _varying(record))
    return ",".join(f"{shlex.quote(name)}:{'x'.join(shape)}" for name, shape in shapes)


def _shape(spec: TensorSpec, sizes: Mapping[str, int | str]) -> list[str]:
    return [str(sizes[size]) if isinstance(size, str) else str(size) for size in spec.values or spec.shape]


# Write a script that compares an engine with its graph by NVIDIA's Polygraphy, which pip installs beside TensorRT.

INPUTS, SCRIPT_NAME = "inputs.json", "polygraphy.sh"
RUNNERS = ("tensorrt", "tensorrt_rtx", "onnxruntime")  # the runtimes that Polygraphy has, too
COSINE = {"fp32": 0.99999, "fp16": 0.9999, "bf16": 0.999}  # by default what the thresholds of params.yaml ask for
COSINE_OF_QUANTIZED = 0.99
POLYGRAPHY_SCRIPT = """\
#!/usr/bin/env bash
# Compare this engine with ONNX Runtime, which executes its graph as it is written, on samples of the validation set.
# Usage: bash {name} [more options of `polygraphy run`, such as --compare l2]
set -euo pipefail
cd "$(dirname "$0")"
export ORT_DISABLE_TELEMETRY=1
if ! command -v polygraphy >/dev/null; then
    python3 -c "import polygraphy" 2>/dev/null ||
        {{ echo "polygraphy is neither on the PATH nor in python3's packages: pip install polygraphy" >&2; exit 1; }}
    polygraphy() {{ python3 -c "import sys; from polygraphy.tools import main; sys.exit(main())" "$@"; }}
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
{rtx}{twin}
polygraphy run {graph} --onnxrt --providers CPUExecutionProvider --graph-optimization-level ORT_DISABLE_ALL \\
    --load-inputs {inputs} --save-outputs "$scratch"/outputs.json
polygraphy run {engine} \\
    --load-inputs {inputs} --load-outputs "$scratch"/outputs.json \\
    --compare cosine_similarity --cosine-similarity-threshold {cosine} "$@"
"""
# ONNX Runtime has neither bfloat16 on a CPU nor blocks of nvfp4 and mxfp8: it is given float32 that is rounded alike.
TWIN = """\
python3 - {graph} "$scratch"/float32.onnx <<'PYTHON'
import sys
from pathlib import Path
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.as_written import twin_of
save_graph(twin_of(load_graph(Path(sys.argv[1]))), Path(sys.argv[2]))
PYTHON
"""


def write_comparison(record: EngineRecord, onnx: Path, feeds: Iterable[Feeds], folder: Path) -> None:
    """Write the script and its inputs into the engine's folder, if Polygraphy can run such engines.

    It cannot put weights into a plan that has none. `enginewright refit` reads the inputs, too.
    """
    if record.target.runtime not in RUNNERS:
        return
    from polygraphy.json import save_json  # here, because all that opens an engine would wait for this import

    save_json([dict(feed) for feed in feeds], str(folder / INPUTS), description=None)
    if not record.weights:
        write_script(record, onnx, folder, folder)


def write_script(record: EngineRecord, onnx: Path, folder: Path, place: Path) -> None:
    """Write the script into a folder that will be at `place`."""
    (folder / SCRIPT_NAME).write_text(comparison_script(record, onnx, os.path.relpath(onnx, place)), encoding="utf-8")


def comparison_script(record: EngineRecord, onnx: Path, path: str) -> str:
    """Return the script. `path` is the path of the graph as seen from the engine's folder."""
    from enginewright.graph.as_written import twin_of  # here: a light installation writes the other script alone
    from enginewright.graph.onnx_file import load_graph

    graph, has_twin = shlex.quote(path), twin_of(load_graph(onnx)) is not None
    return POLYGRAPHY_SCRIPT.format(
        name=SCRIPT_NAME,
        rtx="export POLYGRAPHY_USE_TENSORRT_RTX=1\n" if record.target.runtime == "tensorrt_rtx" else "",
        twin=TWIN.format(graph=graph) if has_twin else "",
        graph='"$scratch"/float32.onnx' if has_twin else graph,
        inputs=INPUTS,
        engine=" ".join(_engine_options(record)),
        cosine=least_cosine(record.precision),
    )


def least_cosine(precision: str) -> float:
    return COSINE.get(precision, COSINE_OF_QUANTIZED)


def _engine_options(record: EngineRecord) -> list[str]:
    if record.target.runtime == "onnxruntime":  # the engine is optimized already
        provider = "CUDAExecutionProvider" if record.target.device == "cuda" else "CPUExecutionProvider"
        return ["engine.onnx", "--onnxrt", f"--providers {provider}", "--graph-optimization-level ORT_DISABLE_ALL"]
    plugins = [shlex.quote(f"./{name}") for name in record.build.tensorrt.plugin_names]
    return ["engine.plan", "--trt", "--model-type engine", *([f"--plugins {' '.join(plugins)}"] if plugins else [])]


# The versions of the libraries that shape a graph.


class Tools(Record):
    """The installed versions by library. A new version of one makes new files."""

    versions: dict[str, str]


TOOLS = (
    "numpy", "pillow", "scikit-learn", "torch", "torchvision", "onnx", "onnxscript", "onnxsim", "polygraphy",
    "onnxruntime-gpu", "onnxruntime", "nvidia-modelopt",
)  # fmt: skip


def describe_tools() -> Tools:
    return Tools(versions={tool: version for tool in TOOLS if (version := installed_version(tool))})

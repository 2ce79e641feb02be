"""Write a script that repeats a build and times its engine with NVIDIA's own command, as an independent check."""

import shlex

from enginery.core.params.build import Bound, BuildParams
from enginery.core.runtimes import RUNTIMES
from enginery.engine.record import EngineRecord

COMPATIBILITY = {"same_compute_capability": "sameComputeCapability", "ampere_plus": "ampere+"}
SCRIPT = """\
#!/usr/bin/env bash
# Build the same graph with {command} of {runtime} {version}, and time this engine by its clock.
# Usage: bash reproduce.sh [batch size]
set -euo pipefail
cd "$(dirname "$0")"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
batch=${{1:-{batch}}}

{command} {build}

{command} {run}
"""


def reproduce_script(record: EngineRecord, onnx: str) -> str:
    """Return the script. `onnx` is the path of the graph as seen from the engine's folder."""
    return SCRIPT.format(
        command=RUNTIMES[record.target.runtime].trtexec,
        runtime=record.target.runtime,
        version=record.target.runtime_version,
        batch=record.build.profile.batch.opt,
        build=_lines(build_options(record, onnx)),
        run=_lines(run_options(record)),
    )


def build_options(record: EngineRecord, onnx: str) -> list[str]:
    build, options = record.build, record.build.tensorrt
    flags = [
        f"--onnx={shlex.quote(onnx)}",
        '--saveEngine="$scratch"/reproduced.plan',
        f"--minShapes={_shapes(record, 'min')}",
        f"--optShapes={_shapes(record, 'opt')}",
        f"--maxShapes={_shapes(record, 'max')}",
        f"--builderOptimizationLevel={options.optimization_level}",
        "--profilingVerbosity=detailed",
        "--skipInference",
    ]
    if options.workspace_mb is not None:
        flags.append(f"--memPoolSize=workspace:{options.workspace_mb}M")
    if not build.tf32:
        flags.append("--noTF32")
    if record.target.runtime == "tensorrt":
        return flags + _tensorrt_options(record, build)
    listed = ",".join(capability.replace(".", "") for capability in record.target.capabilities)
    return [*flags, f"--computeCapabilities={listed}"]


def run_options(record: EngineRecord) -> list[str]:
    """Return the options for timing the engine.

    They include the copies, as Enginery's own end-to-end times do. From 11 on, trtexec leaves copies out by default.
    """
    flags = [
        "--loadEngine=engine.plan",
        f"--shapes={_shapes(record, 'opt', '${batch}')}",
        "--warmUp=200",
        "--duration=3",
    ]
    if record.target.runtime == "tensorrt" and _major(record) < 11:
        flags += ["--useCudaGraph", "--useSpinWait"]
    else:
        flags.append("--includeDataTransfers")
    if record.target.runtime == "tensorrt_rtx":
        flags.append("--specializeStrategyDS=eager")
    if record.target.runtime == "tensorrt" and record.build.tensorrt.version_compatible:
        flags.append("--versionCompatible")
    return flags


def _tensorrt_options(record: EngineRecord, build: BuildParams) -> list[str]:
    flags = ["--stronglyTyped"] if _major(record) < 11 else []  # from 11 on, every network is
    if build.tensorrt.hardware_compatibility != "none":
        flags.append(f"--hardwareCompatibilityLevel={COMPATIBILITY[build.tensorrt.hardware_compatibility]}")
    if build.tensorrt.version_compatible:
        flags.append("--versionCompatible")
    return flags


def _major(record: EngineRecord) -> int:
    return int(record.target.runtime_version.partition(".")[0])


def _shapes(record: EngineRecord, bound: Bound, batch: str | None = None) -> str:
    """Return the shapes of all inputs. `batch`, if given, is the variable of the script that takes its place."""
    sizes = record.profile.at(bound)
    shapes = {spec.name: spec.at(sizes) for spec in record.interface.inputs}
    return ",".join(
        f"{shlex.quote(name)}:{'x'.join(map(str, (batch or shape[0], *shape[1:])))}" for name, shape in shapes.items()
    )


def _lines(flags: list[str]) -> str:
    return " \\\n    ".join(flags)

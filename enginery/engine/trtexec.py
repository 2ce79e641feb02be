"""Write a script that repeats a build and times its engine with NVIDIA's own command, as an independent check."""

import shlex
from typing import get_args

from enginery.core.params.build import Bound
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
        build=" \\\n    ".join(build_options(record, onnx)),
        run=" \\\n    ".join(run_options(record)),
    )


def build_options(record: EngineRecord, onnx: str) -> list[str]:
    build, options = record.build, record.build.tensorrt
    flags = [
        f"--onnx={shlex.quote(onnx)}",
        '--saveEngine="$scratch"/reproduced.plan',
        *(f"--{bound}Shapes={_shapes(record, bound)}" for bound in get_args(Bound)),
        f"--builderOptimizationLevel={options.optimization_level}",
        "--profilingVerbosity=detailed",
        "--skipInference",
    ]
    if options.workspace_mb is not None:
        flags.append(f"--memPoolSize=workspace:{options.workspace_mb}M")
    if not build.tf32:
        flags.append("--noTF32")
    if record.target.runtime == "tensorrt_rtx":
        listed = ",".join(capability.replace(".", "") for capability in record.target.capabilities)
        return [*flags, f"--computeCapabilities={listed}"]
    if _major(record) < 11:  # from 11 on, every network is strongly typed
        flags.append("--stronglyTyped")
    if options.hardware_compatibility != "none":
        flags.append(f"--hardwareCompatibilityLevel={COMPATIBILITY[options.hardware_compatibility]}")
    return [*flags, "--versionCompatible"] if options.version_compatible else flags


def run_options(record: EngineRecord) -> list[str]:
    """Return the options for timing the engine with its copies, which trtexec leaves out by default from 11 on."""
    is_rtx = record.target.runtime == "tensorrt_rtx"
    is_old = not is_rtx and _major(record) < 11
    flags = [
        "--loadEngine=engine.plan",
        f"--shapes={_shapes(record, 'opt', '${batch}')}",
        "--warmUp=200",
        "--duration=3",
    ]
    flags += ["--useCudaGraph", "--useSpinWait"] if is_old else ["--includeDataTransfers"]
    if is_rtx:
        flags.append("--specializeStrategyDS=eager")
    elif record.build.tensorrt.version_compatible:
        flags.append("--versionCompatible")
    return flags


def _major(record: EngineRecord) -> int:
    return int(record.target.runtime_version.partition(".")[0])


def _shapes(record: EngineRecord, bound: Bound, batch: str | None = None) -> str:
    """Return the shapes of all inputs. `batch`, if given, is the variable of the script that takes its place."""
    shapes = [(spec.name, spec.at(record.profile.at(bound))) for spec in record.interface.inputs]
    return ",".join(f"{shlex.quote(name)}:{'x'.join(map(str, (batch or n, *rest)))}" for name, (n, *rest) in shapes)

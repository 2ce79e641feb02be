"""Name this machine and its tools, resolve the runtime, and say what engines are compiled for."""

from pathlib import Path

from enginery.core.brought import MADE_WEIGHTS, brought_checkpoint, brought_model, brought_ranges
from enginery.core.params import load_params
from enginery.core.records import Code
from enginery.core.stage import run_stage
from enginery.machine import describe_machine, describe_tools, dialect_of
from enginery.targets import target_of
from enginery.user_code import fingerprint, named_files


def machine(
    models: Path, weights: Path, calibration: Path, machine: Path, target: Path, dialect: Path, tools: Path, code: Path
) -> None:
    """Write what timings depend on, what engines do, what quantized graphs do, what all graphs do, and the model."""
    params = load_params()
    # The stages that read these files come later, of a large model hours: one that is missing is refused here.
    if params.model.is_onnx:
        brought_model(params.model.source, models)
    if params.weights.source not in MADE_WEIGHTS:
        brought_checkpoint(params.weights.source, weights)
    if params.calibration.file:
        brought_ranges(params.calibration.file, calibration)
    described = describe_machine(params.runtime)
    described.write(machine)
    target_of(described, params.build.tensorrt).write(target)
    dialect_of(described).write(dialect)
    describe_tools().write(tools)
    model = params.model
    made_of = fingerprint(model.source) | named_files(model.arguments) if model.is_factory else {}
    Code(files=made_of).write(code)
    print(f"{described.runtime} {described.runtime_version} on {described.device_name}, {described.cores} cores")


if __name__ == "__main__":
    run_stage(machine)

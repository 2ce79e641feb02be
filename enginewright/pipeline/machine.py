"""Describe this machine, its tools, the code of each stage, and what engines are compiled for."""

from pathlib import Path
from typing import NamedTuple

from enginewright.core import user_files
from enginewright.core.facts import RUNTIMES
from enginewright.core.files import write_text
from enginewright.core.installing import installed_version, require_new_enough
from enginewright.core.params.all import Params
from enginewright.core.params.build import ONNXRUNTIME
from enginewright.engine.machine import Machine, target_of
from enginewright.engine.record import Tuning, TuningPlan
from enginewright.engine.runtimes import describe_machine
from enginewright.engine.tools import TOOLS, Tools
from enginewright.model.user_code import users_code
from enginewright.pipeline.dependencies import code_of_stages, write_parameters
from enginewright.precision.cure import Cure, Cures
from enginewright.precision.dialect import dialect_of
from enginewright.targets.ssh import describe, target_of_stages
from enginewright.tasks.choose import known_of


class MachinePaths(NamedTuple):
    models: Path
    weights: Path
    calibration: Path
    plugins: Path
    cures: Path
    tuned: Path
    machine: Path
    target: Path
    dialect: Path
    tools: Path
    task: Path
    fitting: Path
    tuning: Path
    code: Path
    parameters: Path


def machine(params: Params, paths: MachinePaths) -> None:
    """Write what timings, engines, quantized graphs, all graphs and single stages depend on, each to its own file."""
    require_new_enough()
    require_files(params, paths)
    device = target_of_stages()
    described = describe(device, params.runtime)[0] if device else describe_machine(params.runtime)
    described.write(paths.machine)
    target_of(described, params.build.tensorrt).write(paths.target)
    varies = not all(sizes.fixed for sizes in params.build.profile.ranges.values())
    dialect_of(described.runtime, described.device, described.capability, varies).write(paths.dialect)
    Tools(versions={tool: version for tool in TOOLS if (version := installed_version(tool))}).write(paths.tools)
    known_of(params.task).write(paths.task)
    fitting_cures(paths.cures, described).write(paths.fitting)
    for name, plan in tuning_plans(params, described, paths.tuned).items():
        write_text(paths.tuning / f"{name}.json", f"{plan.model_dump_json(indent=2) if plan else 'null'}\n")
    raced = {name.removesuffix("_cpu") for name in params.benchmark.baselines}
    runtimes = {described.runtime, *({ONNXRUNTIME} & raced)}
    users = users_code(params)
    for stage, its_code in code_of_stages(runtimes, users["model"], users["task"]).items():
        its_code.write(paths.code / f"{stage}.json")
    write_parameters(params, paths.parameters)
    print(described.in_words())


def fitting_cures(folder: Path, here: Machine) -> Cures:
    """Return those that were found with this compiler, its version and this device."""
    again = "if an engine is wrong here, too, run `enginewright cure` again"
    found = (Cure.fitting(path, here, again) for path in sorted(folder.glob("*.json")))
    return Cures(by_precision={cure.precision: cure for cure in found if cure})


def tuning_plans(params: Params, here: Machine, folder: Path) -> dict[str, TuningPlan | None]:
    """Return how each engine is tuned. What was found before counts with this compiler, its version and this device."""
    asked = params.build.tensorrt.tune if RUNTIMES[here.runtime].is_tensorrt else None
    plans: dict[str, TuningPlan | None] = dict.fromkeys(map(str, params.precisions))
    if not asked:
        return plans
    if not here.capability:
        print("build.tensorrt.tune is not followed: this machine has no GPU to race engines on")
        return plans
    for name, each in params.precisions.items():
        path = folder / f"{name}.json"
        found = Tuning.fitting(path, here, "the build searches anew") if path.exists() else None
        limit = each.thresholds.relative_error / 2  # the rest is for what the untuned engine loses
        plans[name] = TuningPlan(
            seconds=asked.seconds, benchmark=params.benchmark, inference=params.inference, limit=limit, found=found
        )
    return plans


def require_files(params: Params, paths: MachinePaths) -> None:
    """Refuse a missing file of the user now: the stage that reads it may run hours later."""
    if params.model.is_onnx:
        user_files.user_model(params.model.source, paths.models)
    if params.model.library == "transformers":
        user_files.user_folder(params.model.library_name, paths.models)
    if params.weights.source not in user_files.WEIGHTS_WITHOUT_FILE:
        user_files.user_checkpoint(params.weights.source, paths.weights)
    if params.calibration.file:
        user_files.user_calibration(params.calibration.file, paths.calibration)
    user_files.user_plugins(params.build.tensorrt.plugins, paths.plugins)

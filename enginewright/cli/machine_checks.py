"""Check what the machine can run: hardware, memory, runtimes, and the types that it executes."""

import os
from pathlib import Path

import psutil

from enginewright.cli.arguments import Check, State
from enginewright.core.cores import usable_cores
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, RUNTIMES, accepted_as
from enginewright.core.params.all import Params
from enginewright.core.text import counted, first_few
from enginewright.engine.gpu import NO_GPU, find_gpu, why_no_gpu
from enginewright.engine.machine import Machine
from enginewright.engine.runtimes import describe_machine, find_cpu, load_runtime
from enginewright.pipeline.dependencies import what_dvc_misses
from enginewright.precision.native_precisions import executed_as
from enginewright.targets.file import FLEET, Fleet
from enginewright.targets.ssh import describe, made_ready, reached

LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def examine_machine() -> list[Check]:
    found = [examine_cpu(), examine_gpu(), examine_memory()]
    found += [examine_runtime(name) for name in RUNTIMES]
    try:
        params = Params.read()
    except EnginewrightError as error:
        remedy = "fix that line" if Path("params.yaml").exists() else "go to the root of the project"
        return [*found, Check("params.yaml", State.WRONG, str(error), remedy)]
    if missing := what_dvc_misses(params):
        lacks = f"lacks in {' and '.join(missing)} what dvc.yaml itself reads there"
        remedy = "`make repro` writes it, or: python -m enginewright.pipeline"
        return [*found, Check("params.yaml", State.WRONG, lacks, remedy)]
    try:
        chosen = describe_machine(params.runtime)
    except EnginewrightError as error:
        return [*found, Check("params.yaml", State.WRONG, str(error), "install it, or set runtime: auto")]
    place = "GPU" if chosen.device == "cuda" else "CPU"
    taken = f"runtime: {params.runtime} takes {chosen.runtime}, on the {place}"
    return [*found, Check("params.yaml", State.FINE, taken), examine_precisions(params, chosen)]


def examine_target(name: str) -> list[Check]:
    """Connect to a target, and put there what it lacks."""
    (target,), params = Fleet.read().only((name,)).targets, Params.read()
    if not target.ssh:
        raise EnginewrightError(f"{FLEET}: {name} is not reached by ssh: run `enginewright doctor` on it")
    found = []
    try:
        with reached(target) as (device, looked):
            brought = f"{looked.in_words}; to bring: {first_few(looked.lacking()) or 'nothing'}"
            found += [Check("ssh", State.FINE, f"{looked.node}, {looked.free / 1e9:.1f} GB free")]
            found += [Check("Python", State.FINE, brought)]
            machine, _ = describe(made_ready(device, looked, "doctor"), params.runtime)
        return [*found, Check("runtime", State.FINE, machine.in_words()), examine_precisions(params, machine)]
    except EnginewrightError as error:
        return [*found, Check(name, State.WRONG, str(error))]


def examine_cpu() -> Check:
    cpu, usable, shown = find_cpu(), usable_cores(), len(os.sched_getaffinity(0))
    cores = counted(usable, "core") if usable == shown else f"{usable} of {shown} cores by a CPU quota"
    return Check("CPU", State.FINE, f"{cpu.device_name}, {cores}, {cpu.capability}")


def examine_gpu() -> Check:
    if gpu := find_gpu():
        able = f"compute capability {gpu.capability}, driver {gpu.driver} for CUDA up to {gpu.cuda}"
        return Check("GPU", State.FINE, f"{gpu.device_name}, {able}")
    reason = why_no_gpu() or NO_GPU
    return Check("GPU", State.FINE if reason == NO_GPU else State.NOTE, reason)


def examine_memory() -> Check:
    """Report the memory. A container's limit counts if it is lower than that of the machine."""
    memory = psutil.virtual_memory()
    limits = [path.read_text(encoding="utf-8").strip() for path in LIMITS if path.exists()]
    total = min([memory.total, *(int(limit) for limit in limits if limit.isdigit())])
    free = min(memory.available, total)
    return Check("memory", State.FINE, f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB of it available")


def examine_runtime(name: str) -> Check:
    runtime = load_runtime(name)
    if missing := runtime.missing():
        why, _, remedy = missing.rpartition(": ")
        return Check(name, State.NOTE, why, remedy)
    try:
        machine = describe_machine(name)
    except EnginewrightError as error:
        return Check(name, State.NOTE, f"{runtime.version()}, but {error}")
    if machine.device == "cuda" and not machine.capability:
        return Check(name, State.FINE, f"{machine.runtime_version}, builds engines for GPUs; none can run here")
    return Check(name, State.FINE, f"{machine.runtime_version}, on the {machine.device_name}")


def examine_precisions(params: Params, machine: Machine) -> Check:
    """Report which precisions run as another type: no mistake, but their speed is no reason to ship them."""
    executed = executed_as(machine, params.build)
    natively = [name for name, kind in executed.items() if kind in accepted_as(name, params.build.tf32)]
    instead = {name: kind for name, kind in executed.items() if name not in natively}
    others = [f"{name} {'as ' if kind in PRECISIONS else ''}{kind}" for name, kind in instead.items()]
    text = f"{machine.runtime} executes {'; '.join([', '.join(natively) + ' natively'] * bool(natively) + others)}"
    asked = [name for name in params.precisions if name not in natively]
    if not asked:
        return Check("precisions", State.FINE, text)
    remedy = f"params.yaml lists {', '.join(asked)}: to look at, not to ship from this machine"
    return Check("precisions", State.NOTE, text, remedy)

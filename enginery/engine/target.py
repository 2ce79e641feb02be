"""What an engine is compiled for, and whether it runs on a machine."""

from collections.abc import Mapping

from pydantic import Field

from enginery.core.errors import EngineryError
from enginery.core.params.build import TensorRTParams
from enginery.core.record import Record
from enginery.engine.machine import Machine


class Target(Record):
    """What an engine is compiled for. None stands for any: a portable engine is bound to less than its builder."""

    runtime: str
    runtime_version: str
    or_newer: bool
    device: str
    device_name: str | None
    capabilities: tuple[str, ...] = Field(min_length=1)
    driver: str | None
    cuda: str | None
    cores: int | None
    operating_system: str


SHARED = ("runtime", "runtime_version", "device", "device_name", "driver", "cuda", "cores", "operating_system")
OR_NEWER = "+"


def target_of(machine: Machine, options: TensorRTParams) -> Target:
    """An engine is bound to all of its machine, but for the portable ones of TensorRT."""
    exact = Target(
        **machine.model_dump(include=set(SHARED)),
        capabilities=(machine.capability,),
        or_newer=False,
    )
    any_gpu = {"device_name": None, "driver": None, "cuda": None, "cores": None}
    if machine.runtime == "tensorrt_rtx":
        return exact.model_copy(update={**any_gpu, "capabilities": options.compute_capabilities})
    if machine.runtime != "tensorrt":
        return exact
    loosened: dict[str, object] = {}
    if options.hardware_compatibility != "none":
        loosened |= any_gpu
    if options.hardware_compatibility == "ampere_plus":
        loosened["capabilities"] = ("8.0" + OR_NEWER,)
    loosened["or_newer"] = options.version_compatible
    return exact.model_copy(update=loosened)


def require_fits(target: Target, machine: Machine, what: object) -> None:
    if target.device == machine.device == "cuda" and not machine.capability:
        raise EngineryError(
            f"{what} needs a GPU of compute capability {alternatives(target)}, and this machine shows none. "
            "It stays as it is: run `dvc repro` on a machine with one"
        )
    differing = differences(target, machine)
    if differing:
        changes = ", ".join(f"{name} {there} there and {here} here" for name, (there, here) in differing.items())
        raise EngineryError(f"{what} was built for another machine: {changes}. Run `dvc repro` to build it here")


def differences(target: Target, machine: Machine) -> Mapping[str, tuple[str, str]]:
    """What the engine is bound to, and the machine is not, by name."""
    found = {name: (getattr(target, name), getattr(machine, name)) for name in SHARED}
    differing = {
        name: (repr(there), repr(here)) for name, (there, here) in found.items() if there is not None and there != here
    }
    if target.or_newer and _is_later_of_same_major(machine.runtime_version, target.runtime_version):
        differing.pop("runtime_version", None)
    if target.device == machine.device and not any(
        _covers(listed, machine.capability) for listed in target.capabilities
    ):
        what = "compute capability" if target.device == "cuda" else "instruction sets"
        differing[what] = (alternatives(target), machine.capability)
    return differing


def _is_later_of_same_major(version: str, than: str) -> bool:
    """What a version-compatible engine runs with."""
    return version.partition(".")[0] == than.partition(".")[0] and _number(version) >= _number(than)


def _covers(listed: str, capability: str) -> bool:
    if listed.endswith(OR_NEWER):
        return _number(capability) >= _number(listed.removesuffix(OR_NEWER))
    return listed == capability


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def alternatives(target: Target) -> str:
    *others, last = [
        f"{listed.removesuffix(OR_NEWER)} or newer" if listed.endswith(OR_NEWER) else listed
        for listed in target.capabilities
    ]
    return f"{', '.join(others)} or {last}" if others else last

"""The machine that engines are built for and timings belong to, an engine's target, and whether the two fit."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field
from typing_extensions import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, RUNTIMES
from enginewright.core.files import Record
from enginewright.core.params.build import TensorRTParams
from enginewright.core.text import counted

MUST_AGREE = ("runtime", "runtime_version", "device", "device_name", "cores", "operating_system")
OR_NEWER = "+"  # at the end of a compute capability: later ones fit as well


class Machine(Record):
    """The facts that an engine and a timing depend on. All are stable: clocks and free memory are not among them."""

    runtime: str
    runtime_version: str
    device: str
    device_name: str
    capability: str
    driver: str
    cuda: str
    cores: int
    operating_system: str
    power: str = ""  # of a Jetson: the mode, and whether clocks are fixed

    def in_words(self) -> str:
        power = f", {self.power}" if self.power else ""
        return f"{self.runtime} {self.runtime_version} on {self.device_name}, {counted(self.cores, 'core')}{power}"


class FoundHere(Record):
    """The base of what was found for one compiler on one device, and may be wrong for others."""

    runtime: str
    runtime_version: str
    device_name: str

    @property
    def found_with(self) -> str:
        return f"{RUNTIMES[self.runtime].title} {self.runtime_version} on {self.device_name}"

    @classmethod
    def fitting(cls, path: Path, here: Machine, again: str) -> Self | None:
        """Return what a file has, if it was found with this compiler and version on this device, or say so."""
        try:
            found = cls.parse(path.read_bytes(), str(path))
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}: restore it from git, or delete it") from None
        if all(getattr(found, name) == getattr(here, name) for name in FoundHere.model_fields):
            return found
        print(f"{path} was found with {found.found_with}, this is {here.in_words()}: {again}")
        return None


class Target(Record):
    """The machines that an engine is compiled for. None stands for any: a portable engine fits several machines."""

    runtime: str
    runtime_version: str
    or_newer: bool  # whether later versions fit as well: of the same major version, and of 11 for engines of 10
    device: str
    device_name: str | None
    capabilities: tuple[str, ...] = Field(min_length=1)
    cores: int | None
    operating_system: str


def target_of(machine: Machine, options: TensorRTParams) -> Target:
    """Return what an engine that this machine builds fits: this machine alone, or more if TensorRT builds it so."""
    facts = machine.model_dump(include=set(MUST_AGREE)) | {"capabilities": (machine.capability,), "or_newer": False}
    if machine.device == "cuda":  # driver and CPU change the timings of such an engine, and not whether it runs
        facts["cores"] = None
    if RUNTIMES[machine.runtime].builds_without_gpu:
        facts |= {"device_name": None, "capabilities": options.compute_capabilities}
    elif RUNTIMES[machine.runtime].is_tensorrt:
        facts["or_newer"] = options.version_compatible
        if options.hardware_compatibility != "none":
            facts["device_name"] = None
        if options.hardware_compatibility == "ampere_plus":
            facts["capabilities"] = ("8.0" + OR_NEWER,)
    return Target(**facts)


def lacking(target: Target, precision: str) -> list[str]:
    """Return those compute capabilities of the target that cannot execute a precision."""
    if target.device != "cuda":
        return []
    since = PRECISIONS[precision].since
    return [listed for listed in target.capabilities if _number(listed.removesuffix(OR_NEWER)) < since]


def require_fits(target: Target, machine: Machine, what: object) -> None:
    """Refuse an engine on a machine that does not fit its target. `what` names the engine in the error."""
    if target.device == machine.device == "cuda" and not machine.capability:
        raise EnginewrightError(
            f"{what} needs a GPU of compute capability {alternatives(target)}, and this machine shows none. "
            "It stays as it is: run `dvc repro` on a machine with one"
        )
    if differing := differences(target, machine):
        changes = ", ".join(f"{name} {there} there and {here} here" for name, (there, here) in differing.items())
        raise EnginewrightError(f"{what} was built for another machine: {changes}. Run `dvc repro` to build it here")


def differences(target: Target, machine: Machine) -> Mapping[str, tuple[str, str]]:
    """Return what differs, by name: the value that the target asks for, and the machine's."""
    found = {name: (getattr(target, name), getattr(machine, name)) for name in MUST_AGREE}
    differing = {name: (repr(want), repr(have)) for name, (want, have) in found.items() if want not in (None, have)}
    here, there = _number(machine.runtime_version), _number(target.runtime_version)
    # NVIDIA's support matrix: version-compatible plans of 10 run with 11.
    if target.or_newer and there <= here and (here[0] == there[0] or (there[0], here[0]) == (10, 11)):
        differing.pop("runtime_version", None)

    def covers(listed: str) -> bool:
        oldest = listed.removesuffix(OR_NEWER)
        return listed == machine.capability or (listed != oldest and _number(machine.capability) >= _number(oldest))

    if target.device == machine.device and not any(map(covers, target.capabilities)):
        what = "compute capability" if target.device == "cuda" else "instruction sets"
        differing[what] = (alternatives(target), machine.capability)
    return differing


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def alternatives(target: Target) -> str:
    *others, last = (listed.replace(OR_NEWER, " or newer") for listed in target.capabilities)
    return f"{', '.join(others)} or {last}" if others else last


def where(target: Target) -> str:
    """Name the machines that an engine for this target runs on."""
    if target.device == "cpu":
        return f"{target.device_name}, {counted(target.cores or 0, 'core')}, {target.operating_system}"
    gpu = target.device_name or "any NVIDIA GPU"
    return f"{gpu}, compute capability {alternatives(target)}, {target.operating_system}"

"""The energy that a device takes for an image, where the machine tells it: NVML for a GPU, RAPL for a CPU."""

import time
from collections.abc import Callable
from pathlib import Path

import pynvml

from enginewright.core.files import VALIDATION_SAMPLES, Record
from enginewright.core.params.all import Params
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine
from enginewright.engine.gpu import nvml_device
from enginewright.engine.machine import Machine
from enginewright.measure.timing import whole_machine

RAPL = Path("/sys/class/powercap")
SECONDS = 3.0
Reading = Callable[[], float]  # returns the joules since it was made


class Energy(Record):
    """The energy of the whole device for an image, idle draw included. `joules` is None where the machine does
    not tell it, and `source` then says why."""

    joules: float | None
    source: str


def engine_energy(precision: str, folder: Path, machine: Machine, params: Params, batch: int) -> Energy:
    samples = SampleSet.open(VALIDATION_SAMPLES)
    with (
        whole_machine(f"energy, {precision}"),
        open_engine(folder, machine, params.inference.on(machine.cores)) as engine,
    ):
        feeds = samples.tuned(engine.record.profile).cycled(batch)
        return energy_per_image(machine.device, engine.bind(feeds), batch)


class NotToldError(Exception):
    """The machine does not tell its energy. The text says why."""


def energy_per_image(device: str, call: Callable[[], object], images: int, seconds: float = SECONDS) -> Energy:
    """Call for some seconds, and divide what the device took by the images of all calls."""
    begin, source = (_nvml, "NVML, the GPU") if device == "cuda" else (_rapl, "RAPL, the processor's package")
    try:
        call()
        joules, done, started = begin(), 0, time.perf_counter()
        while time.perf_counter() - started < seconds or not done:
            call()
            done += images
        took = joules()
    except pynvml.NVMLError as error:
        return Energy(joules=None, source=f"NVML: {error}")
    except NotToldError as why:
        return Energy(joules=None, source=str(why))
    if took <= 0:
        return Energy(joules=None, source=f"{source}: the counter did not move")
    return Energy(joules=took / done, source=source)


def _nvml() -> Reading:
    gpu = nvml_device()
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - before) / 1e3


def _rapl() -> Reading:
    names = sorted(RAPL.glob("intel-rapl:*/name"))
    packages = [name.parent for name in names if name.read_text(encoding="utf-8").startswith("package")]
    if not packages:
        raise NotToldError("this machine shows no RAPL counter")
    before = [_microjoules(zone / "energy_uj") for zone in packages]

    def joules() -> float:
        taken = 0
        for zone, first in zip(packages, before, strict=True):
            last = _microjoules(zone / "energy_uj")
            taken += last - first if last >= first else last - first + _microjoules(zone / "max_energy_range_uj")
        return taken / 1e6

    return joules


def _microjoules(path: Path) -> int:
    try:
        return int(path.read_text(encoding="utf-8"))
    except PermissionError:
        raise NotToldError(f"RAPL: {path.resolve()} is for root alone") from None
    except (OSError, ValueError) as error:
        raise NotToldError(f"RAPL: {error}") from None

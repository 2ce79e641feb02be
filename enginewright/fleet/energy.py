"""Read how much energy a device took, where the machine tells it: NVML for a GPU, RAPL for a CPU."""

import time
from collections.abc import Callable
from pathlib import Path

import pynvml

from enginewright.engine.gpu.cuda import bus_address
from enginewright.fleet.answer import Energy

RAPL = Path("/sys/class/powercap")
SECONDS = 3.0
Reading = Callable[[], float]  # returns the joules since it was made


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
    except NotToldError as why:
        return Energy(joules=None, source=str(why))
    if took <= 0:
        return Energy(joules=None, source=f"{source}: the counter did not move")
    return Energy(joules=took / done, source=source)


def _nvml() -> Reading:
    try:
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByPciBusId(bus_address())
        before = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    except pynvml.NVMLError as error:
        raise NotToldError(f"NVML: {error}") from None

    def joules() -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - before) / 1e3
        except pynvml.NVMLError as error:
            raise NotToldError(f"NVML: {error}") from None

    return joules


def _rapl() -> Reading:
    packages = [zone for zone in sorted(RAPL.glob("intel-rapl:*")) if _text(zone / "name").startswith("package")]
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""

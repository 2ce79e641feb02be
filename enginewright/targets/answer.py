"""The answer of a target: a JSON file in history/fleet/MODEL/, which git carries between machines."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pynvml

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import is_own
from enginewright.core.files import HISTORY, LOCK, Record, sha256, sha256_of
from enginewright.core.params.all import Params
from enginewright.core.user_files import WEIGHTS_WITHOUT_FILE
from enginewright.engine.gpu.cuda import bus_address
from enginewright.engine.machine import Machine
from enginewright.measure.accuracy_records import Result
from enginewright.measure.earlier_engines import hashes_of_outs
from enginewright.measure.history import what_is_measured
from enginewright.model.user_code import files_named_in, fingerprint, fingerprint_of_task
from enginewright.targets.file import Name

# Name what an answer is about by content: other images or other code under the same name are another subject.


def digest_of_subject(params: Params) -> str:
    """Return a digest of the parameters of the model, its weights and the samples, and of what is in their files. It is
    the same on all machines: weights that are trained are known by their samples, as each machine trains its own."""
    return sha256_of([what_is_measured(params), _files_of(params)])


def _files_of(params: Params) -> dict[str, Any]:
    model, weights = params.model, params.weights.source
    places = [] if weights in WEIGHTS_WITHOUT_FILE else [Path(weights)]
    if model.is_onnx:
        places.append(Path(model.source))
    if model.library == "transformers":
        places.append(Path(model.library_name))
    return {
        "files": {str(file): sha256(file) for place in places if place.exists() for file in _files_in(place)},
        "model": fingerprint(model.source) | files_named_in(model.arguments) if model.is_factory else {},
        "task": fingerprint_of_task(params.task) if is_own(params.task) else {},
        "samples": _samples(),
    }


def _files_in(place: Path) -> list[Path]:
    return sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]


def _samples() -> list[str]:
    """Return DVC's hashes of the samples as they were made last."""
    made = hashes_of_outs(LOCK.read_bytes(), str(LOCK)) if LOCK.exists() else {}
    return made.get("samples", [])


FOLDER = HISTORY / "fleet"
PASSED, NOT_YET = "passed", "not answered yet"


class Speed(Record):
    """The speed of an engine with so many requests in flight. p99 is None where calls were too few for one. Then
    `slowest` is nearly the slowest of them, but for answers of earlier versions, which did not keep it."""

    batch: int
    requests: int
    p50: float
    p99: float | None
    images_per_second: float
    slowest: float | None = None


class Energy(Record):
    """The energy of the whole device for an image, idle draw included. `joules` is None where the machine does
    not tell it, and `source` then says why."""

    joules: float | None
    source: str


class Measured(Record):
    """The figures of one precision on a target. It has neither speeds nor a result if there is no engine of it."""

    precision: str
    verdict: str
    why: str = ""
    speeds: tuple[Speed, ...] = ()
    metric: str = ""
    result: Result | None = None
    relative_error: float | None = None
    energy: Energy | None = None


class Answer(Record):
    """The last answer of a target about a model. `failed` says why it has not answered since, if it was asked."""

    target: Name  # which a node says
    model: str
    node: str = ""
    machine: Machine | None = None
    revision: str = ""
    date: datetime | None = None
    precisions: tuple[Measured, ...] = ()
    failed: str = ""

    @classmethod
    def without_figures(cls, target: str, params: Params, why: str) -> Self:
        return cls(target=target, model=params.model.source, failed=why)


class Answers:
    """The answers about one model with one set of samples: a folder of history/fleet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def about(cls, params: Params, root: Path = FOLDER) -> Self:
        """Return where answers about the present model and samples are. Others have another folder, and stay. Ask after
        the run: the samples are known by what it made of them."""
        readable = re.sub(r"[^A-Za-z0-9]+", "-", params.model.source).strip("-")
        return cls(root / f"{readable}-{digest_of_subject(params)[:8]}")

    @classmethod
    def of_all_models(cls, root: Path = FOLDER) -> list[Self]:
        return [cls(folder) for folder in sorted(root.iterdir()) if folder.is_dir()] if root.is_dir() else []

    def of(self, target: str) -> Answer | None:
        path = self.folder / f"{target}.json"
        if not path.exists():
            return None
        try:
            return Answer.parse(path.read_bytes(), str(path))
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}: restore it from git, or delete it and ask {target} again") from None

    def keep(self, answer: Answer) -> None:
        """Write an answer. Where a target failed, its earlier figures stay in the file."""
        earlier = self.of(answer.target) if answer.failed else None
        kept = earlier.model_copy(update={"failed": answer.failed}) if earlier else answer
        kept.write(self.folder / f"{answer.target}.json")

    def put_back(self, target: str, before: Answer | None) -> None:
        """Let a target's file be as it was before."""
        if before:
            before.write(self.folder / f"{target}.json")
            return
        (self.folder / f"{target}.json").unlink()
        with suppress(OSError):  # others have answered
            self.folder.rmdir()


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


# Read how much energy a device took, where the machine tells it: NVML for a GPU, RAPL for a CPU.

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

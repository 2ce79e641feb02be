"""Read what earlier runs left: measurements, engines, and the nights, which history/README.md explains."""

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any, TypeVar

from pydantic import AwareDatetime, Field
from ruamel.yaml.error import YAMLError
from typing_extensions import Self

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.files import ENGINES, LOCK, MACHINE, MEASUREMENTS, Record, new_file, scratch_folder, sha256_of
from enginewright.core.params.all import Params, overlay
from enginewright.core.params.section import load_yaml
from enginewright.core.process import cache_of_dvc
from enginewright.core.text import counted
from enginewright.engine.machine import Machine
from enginewright.engine.record import RECORD, EngineRecord
from enginewright.measure.records import Identity, Measurements, Outcome, Ratio

NIGHTS, GOOD, GOOD_ENGINES, SETTING = "nights.jsonl", "good.json", "good-engines.json", "setting.json"
GATE, FIRST = "gate", "first"  # verdicts besides outcomes: a threshold broke; there was no good run to compare with
Kept = TypeVar("Kept", bound=Record)


class Night(Record):
    """One night's result for one precision: a line of nights.jsonl. A field that is added later needs a default."""

    date: AwareDatetime
    revision: str
    runtime_version: str
    driver: str
    precision: str = Field(pattern=f"^({'|'.join(PRECISIONS)})$")
    ratios: tuple[Ratio, ...] = Field(min_length=1)
    accuracy: float | None  # the value of the metric
    metric: str = "accuracy"
    relative_error: float
    engine_bytes: int
    outcome: Outcome | None  # None if there was no good run to compare with
    broken: tuple[str, ...]
    good: bool  # about the whole night, as is `kept`
    kept: bool  # its measurements became the good run

    @property
    def baseline(self) -> str:
        return self.ratios[0].baseline

    @property
    def verdict(self) -> str:
        return GATE if self.broken else self.outcome or FIRST

    def speed(self, figure: str = "median") -> float:
        """Return how many times as fast as the first baseline: the geometric mean over its batch sizes."""
        return geometric_mean(getattr(ratio, figure) for ratio in self.ratios if ratio.baseline == self.baseline)


# These had no defaults when the first nights were kept, and are named whatever their values.
ALWAYS: dict[str, Any] = {
    "model": {"source", "arguments"},
    "weights": {"source", "training"},
    "samples": {
        **dict.fromkeys(("source", "seed", "validation", "training", "calibration"), True),
        "preprocessing": {"resize", "crop", "interpolation", "mean", "std"},
    },
}


def what_is_measured(params: Params) -> dict[str, Any]:
    """Return model, weights, samples and task without defaults, so that a later version's parameter changes none."""
    given = params.model_dump(mode="json", include=ALWAYS)
    overlay(given, params.model_dump(mode="json", exclude_defaults=True, include={*ALWAYS, "task"}))
    return given


class Setting(Record):
    """The machine, model and samples that nights must share to be compared with each other."""

    # How engines are made is not part of it: a nightly run must find a change there that makes an engine slower.
    machine: Identity
    model: dict[str, Any]
    weights: dict[str, Any]
    samples: dict[str, Any]

    @classmethod
    def of(cls, machine: Machine, params: Params) -> Self:
        given = what_is_measured(params)
        del given["samples"]["calibration"]
        return cls(
            machine=Identity.of(machine),
            model=given["model"] | ({"task": given["task"]} if "task" in given else {}),
            weights=given["weights"],
            samples=given["samples"],
        )

    @property
    def folder(self) -> str:
        """Return the folder's name, such as AMD-EPYC-2-cores-openvino-1a2b3c4d."""
        readable = re.sub(r"[^A-Za-z0-9]+", "-", self._machine).strip("-")
        return f"{readable}-{sha256_of(self.model_dump(mode='json'))[:8]}"

    @property
    def title(self) -> str:
        model = ", ".join(str(value) for value in self.model.values() if value)
        return f"{model} on {self._machine}"

    @property
    def _machine(self) -> str:
        return f"{self.machine.device_name}, {counted(self.machine.cores, 'core')}, {self.machine.runtime}"


@dataclass(frozen=True)
class History:
    """The nights of one setting, and their good run: the measurements that each night is compared with."""

    folder: Path
    setting: Setting

    @classmethod
    def here(cls, root: Path, params: Params) -> Self:
        setting = Setting.of(Machine.read(MACHINE), params)
        return cls(root / setting.folder, setting)

    def nights(self) -> list[Night]:
        path = self.folder / NIGHTS
        lines = path.read_bytes().splitlines() if path.exists() else []
        cure = "Mend that line, or take the file back from git"
        return [_parsed(Night, line, f"{path}, line {number}", cure) for number, line in enumerate(lines, 1)]

    def good(self) -> Measurements | None:
        path = self.folder / GOOD
        cure = "Take the file back from git, or delete it to start again"
        return _parsed(Measurements, path.read_bytes(), str(path), cure) if path.exists() else None

    def append(self, nights: Iterable[Night]) -> None:
        self.setting.write(self.folder / SETTING)
        everything = [*self.nights(), *nights]
        with new_file(self.folder / NIGHTS) as temporary:
            temporary.write_text("".join(f"{night.model_dump_json()}\n" for night in everything), encoding="utf-8")

    def keep(self, measurements: Measurements, engines: Mapping[str, str]) -> None:
        """Keep a good run, with the hashes of its engines by precision: DVC's cache has the engines themselves."""
        with new_file(self.folder / GOOD_ENGINES) as temporary:
            temporary.write_text(f"{json.dumps(engines, indent=2)}\n", encoding="utf-8")
        measurements.write(self.folder / GOOD)


def read_history(root: Path) -> list[History]:
    """Return those with a night. A run may have been killed before it wrote the first, or somebody begins anew."""
    cure, settings = "Take the file back from git", sorted(root.glob(f"*/{SETTING}"))
    histories = [History(path.parent, _parsed(Setting, path.read_bytes(), str(path), cure)) for path in settings]
    return [history for history in histories if history.nights()]


def _parsed(kind: type[Kept], content: bytes, origin: str, cure: str) -> Kept:
    try:
        return kind.parse(content, origin)
    except EnginewrightError as error:
        raise EnginewrightError(f"{error}. {cure}") from None


def read_measurements(place: str) -> Measurements:
    """Read the measurements in a reports folder, in a measurements.json, or in a git revision."""
    path = Path(place)
    if path.is_dir():
        if not (path / MEASUREMENTS.name).exists():
            raise EnginewrightError(f"{path} holds no {MEASUREMENTS.name}: give the reports folder of a finished run")
        return Measurements.read(path / MEASUREMENTS.name)
    if path.exists():
        return _parsed(Measurements, path.read_bytes(), str(path), f"Reports are compared by their {MEASUREMENTS.name}")
    shown = show_in_git(place, MEASUREMENTS)
    if shown.returncode:
        reason = (shown.stderr.decode(errors="replace").strip().splitlines() or ["git gives no reason"])[0]
        raise EnginewrightError(f"{place} is no file, no folder, and no git revision with {MEASUREMENTS} ({reason})")
    return Measurements.parse(shown.stdout, f"{place}:{MEASUREMENTS}")


def show_in_git(revision: str, path: Path) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "show", "--end-of-options", f"{revision}:./{path}"], capture_output=True)


@contextmanager
def engines_of(place: str) -> Iterator[Callable[[str], Path]]:
    """Open the engines of a reports folder, a history's good run or a git revision: give their folders by precision."""
    measured = {entry.precision: entry.validation.engine for entry in read_measurements(place).precisions}
    path, hashes = Path(place), dict[str, str]()
    if path.is_file():
        hashes = _hashes_of_good_run(path)
    elif not path.exists():
        shown = show_in_git(place, LOCK)
        if shown.returncode:
            raise EnginewrightError(f"{place} has no {LOCK}, which would name its engines")
        hashes = parse_hashes(shown.stdout, f"{place}:{LOCK}")
    cache = Path() if path.is_dir() else Path(cache_of_dvc(), "files/md5")
    with scratch_folder() as scratch:

        def find(precision: str) -> Path:
            folder = (path.parent / ENGINES if path.is_dir() else scratch) / precision
            if not path.is_dir():
                _link_from_cache(cache, hashes, place, folder)
            elif not folder.is_dir():
                raise EnginewrightError(f"{folder} is missing: run `dvc checkout` or `dvc repro` in that project")
            if EngineRecord.read(folder / RECORD).identity != measured.get(precision):
                raise EnginewrightError(
                    f"the engine of {precision} that goes with {place} is not the one that was measured there: "
                    "`dvc checkout` brings engines and reports together"
                )
            return folder

        yield find


def parse_hashes(lock: bytes, origin: str) -> dict[str, str]:
    """Read DVC's hash of each engine's folder from the text of a dvc.lock, by precision."""
    made = hashes_of_outs(lock, origin)
    return {name.removeprefix("build@"): outs[0] for name, outs in made.items() if name.startswith("build@")}


def hashes_of_outs(lock: bytes, origin: str) -> dict[str, list[str]]:
    """Read DVC's hashes of what each stage made, which is at least one thing, but for the gate."""
    try:
        stages = load_yaml(lock)["stages"]
        made = {name: [str(out["md5"]) for out in stage["outs"]] for name, stage in stages.items() if "outs" in stage}
    except (YAMLError, LookupError, *UNREADABLE):
        made = {"": []}
    if not all(made.values()):
        raise EnginewrightError(f"{origin} is not a lock file of DVC. Take it back from git")
    return made


def _hashes_of_good_run(good: Path) -> dict[str, str]:
    path = good.with_name(GOOD_ENGINES)
    if not path.exists():
        raise EnginewrightError(
            f"{good} has no {GOOD_ENGINES} beside it, which would name its engines: delete this good run, and the next "
            "good night becomes the good run"
        )
    try:
        return {str(name): str(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except UNREADABLE:
        raise EnginewrightError(f"{path} is damaged. Take the file back from git") from None


def _link_from_cache(cache: Path, hashes: Mapping[str, str], place: str, folder: Path) -> None:
    """Fill a folder, which has the name of a precision, with links to what DVC's cache has of that engine. Its files
    lie there by their hashes, and a folder is a list of them."""
    if (precision := folder.name) not in hashes:
        raise EnginewrightError(f"{place} has no engine of {precision}")
    try:
        for file in json.loads((cache / hashes[precision][:2] / hashes[precision][2:]).read_text(encoding="utf-8")):
            link, name = folder / file["relpath"], file["md5"]
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((cache / name[:2] / name[2:]).resolve(strict=True))
    except (FileNotFoundError, *UNREADABLE):
        raise EnginewrightError(
            f"the engine of {precision} that {place} had is not in DVC's cache here: it was made elsewhere, or "
            "removed. `dvc repro` in that state makes it again"
        ) from None

"""Read and write what the nightly runs found: files in git, which history/README.md explains."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Self

from pydantic import AwareDatetime, Field

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.files import HISTORY, MACHINE, Record, new_file, sha256_of
from enginewright.core.params.all import Params, overlay
from enginewright.engine.machine import Machine
from enginewright.measure.changes import Identity, Measurements, Outcome
from enginewright.measure.records import Ratio

NIGHTS, GOOD, GOOD_ENGINES, SETTING = "nights.jsonl", "good.json", "good-engines.json", "setting.json"
GATE, FIRST = "gate", "first"  # verdicts besides outcomes: a threshold broke; there was no good run to compare with


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
    """Return the model, weights, samples and task, without defaults, so that a parameter of a later version does not
    make others of them."""
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
        machine = f"{self.machine.device_name} {self.machine.cores} cores {self.machine.runtime}"
        readable = re.sub(r"[^A-Za-z0-9]+", "-", machine).strip("-")
        return f"{readable}-{sha256_of(self.model_dump(mode='json'))[:8]}"

    @property
    def title(self) -> str:
        model = ", ".join(str(value) for value in self.model.values() if value)
        return f"{model} on {self.machine.device_name}, {self.machine.cores} cores, {self.machine.runtime}"


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return both, one level within the other."""
    return one | {
        name: _merged(one[name], value) if isinstance(value, dict) and isinstance(one.get(name), dict) else value
        for name, value in other.items()
    }


class History:
    """The nights of one setting, and their good run: the measurements that each night is compared with."""

    def __init__(self, folder: Path, setting: Setting) -> None:
        self.folder, self.setting = folder, setting

    @classmethod
    def here(cls, params: Params) -> Self:
        """Return the history of this machine and of the project in this folder."""
        setting = Setting.of(Machine.read(MACHINE), params)
        return cls(HISTORY / setting.folder, setting)

    def nights(self) -> list[Night]:
        path = self.folder / NIGHTS
        lines = path.read_bytes().splitlines() if path.exists() else []
        try:
            return [Night.parse(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}. Mend that line, or take the file back from git") from None

    def good(self) -> Measurements | None:
        path = self.folder / GOOD
        if not path.exists():
            return None
        try:
            return Measurements.parse(path.read_bytes(), str(path))
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}. Take the file back from git, or delete it to start again") from None

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
    histories = []
    for path in sorted(root.glob(f"*/{SETTING}")):
        try:
            setting = Setting.parse(path.read_bytes(), str(path))
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}. Take the file back from git") from None
        histories.append(History(path.parent, setting))
    return [history for history in histories if history.nights()]


def last_kept(nights: Sequence[Night]) -> Night | None:
    """Return a line of the night that became the present good run."""
    return next((night for night in reversed(nights) if night.kept), None)

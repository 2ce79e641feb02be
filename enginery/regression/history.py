"""What the nightly runs found, as files in git: history/README.md says which."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Self

from enginery.core.errors import EngineryError
from enginery.core.files import new_file, sha256_of
from enginery.core.params.all import Params
from enginery.core.record import Record
from enginery.engine.machine import Machine
from enginery.regression.comparison import SAME_MACHINE, Outcome
from enginery.regression.measurements import Measurements
from enginery.speed.records import Ratio

NIGHTS, GOOD, GOOD_ENGINES, SETTING = "nights.jsonl", "good.json", "good-engines.json", "setting.json"
GATE, FIRST = "gate", "first"  # beside outcomes: a threshold broke; there was no good run to compare with


class Night(Record):
    """What one night found of one precision: a line of nights.jsonl. A field that is added later needs a default.

    `outcome` is None where there was no good run to hold it against. `good` and `kept` are of the whole night: `kept`
    if its measurements became the good run.
    """

    date: datetime
    revision: str
    runtime_version: str
    driver: str
    precision: str
    ratios: tuple[Ratio, ...]
    accuracy: float | None
    relative_error: float
    engine_bytes: int
    outcome: Outcome | None
    broken: tuple[str, ...]
    good: bool
    kept: bool

    @property
    def baseline(self) -> str:
        return self.ratios[0].baseline

    @property
    def verdict(self) -> str:
        return GATE if self.broken else self.outcome or FIRST

    def speed(self, figure: str = "median") -> float:
        """Times the first baseline, the geometric mean over its batch sizes."""
        return geometric_mean(getattr(ratio, figure) for ratio in self.ratios if ratio.baseline == self.baseline)


class Setting(Record):
    """What nights must share to be held against each other: the machine, the model and the images.

    How engines are made of them is not in it: a change there that makes one slower is what a nightly run is to find.
    """

    machine: dict[str, Any]
    model: dict[str, Any]
    weights: dict[str, Any]
    samples: dict[str, Any]

    @classmethod
    def of(cls, machine: Machine, params: Params) -> Self:
        """Without defaults: a parameter that a later version adds makes no other setting."""
        return cls(
            machine=machine.model_dump(mode="json", include=set(SAME_MACHINE)),
            model=params.model.model_dump(mode="json", exclude_defaults=True),
            weights=params.weights.model_dump(mode="json", exclude_defaults=True),
            samples=params.samples.model_dump(mode="json", exclude_defaults=True, exclude={"calibration"}),
        )

    @property
    def folder(self) -> str:
        """Such as AMD-EPYC-2-cores-openvino-1a2b3c4d."""
        device, cores, runtime = (self.machine[name] for name in ("device_name", "cores", "runtime"))
        readable = re.sub(r"[^A-Za-z0-9]+", "-", f"{device} {cores} cores {runtime}").strip("-")
        return f"{readable}-{sha256_of(self.model_dump(mode='json'))[:8]}"

    @property
    def title(self) -> str:
        model = ", ".join(str(value) for value in self.model.values() if value)
        return f"{model} on {self.machine['device_name']}, {self.machine['cores']} cores, {self.machine['runtime']}"


class History:
    """The nights of one setting."""

    def __init__(self, folder: Path, setting: Setting) -> None:
        self.folder, self.setting = folder, setting

    def nights(self) -> list[Night]:
        path = self.folder / NIGHTS
        lines = path.read_text().splitlines() if path.exists() else []
        try:
            return [Night.parse(line.encode(), f"{path}, line {number}") for number, line in enumerate(lines, 1)]
        except EngineryError as error:
            raise EngineryError(f"{error}. Mend that line, or take the file back from git") from None

    def good(self) -> Measurements | None:
        path = self.folder / GOOD
        if not path.exists():
            return None
        try:
            return Measurements.parse(path.read_bytes(), str(path))
        except EngineryError as error:
            raise EngineryError(f"{error}. Take the file back from git, or delete it to begin anew") from None

    def append(self, nights: Iterable[Night]) -> None:
        self.setting.write(self.folder / SETTING)
        everything = [*self.nights(), *nights]
        with new_file(self.folder / NIGHTS) as temporary:
            temporary.write_text("".join(f"{night.model_dump_json()}\n" for night in everything))

    def keep(self, measurements: Measurements, engines: Mapping[str, str]) -> None:
        """The engines by precision, as DVC calls them: they stay in its cache, not in git."""
        with new_file(self.folder / GOOD_ENGINES) as temporary:
            temporary.write_text(f"{json.dumps(engines, indent=2)}\n")
        measurements.write(self.folder / GOOD)


def read_history(root: Path) -> list[History]:
    """Of all settings, in the order of their names."""
    return [History(path.parent, Setting.read(path)) for path in sorted(root.glob(f"*/{SETTING}"))]


def last_kept(nights: Sequence[Night]) -> Night | None:
    """A night that became the good run that there is now."""
    return next((night for night in reversed(nights) if night.kept), None)

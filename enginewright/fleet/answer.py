"""The answer of a target: a JSON file in history/fleet/MODEL/, which git carries between machines."""

import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from enginewright.accuracy.records import Result
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.core.paths import HISTORY
from enginewright.core.record import Record
from enginewright.engine.machine import Machine
from enginewright.fleet.file import Name
from enginewright.fleet.subject import digest_of_subject

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

"""The answer of a target: a JSON file in history/fleet/MODEL/, which git carries between machines."""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import HISTORY, LOCK, Record, sha256, sha256_of
from enginewright.core.params.all import Params
from enginewright.core.user_files import WEIGHTS_WITHOUT_FILE
from enginewright.engine.machine import Machine
from enginewright.measure.history import hashes_of_outs, what_is_measured
from enginewright.measure.records import Energy, Result
from enginewright.targets.file import Name

FOLDER = HISTORY / "fleet"
PASSED, NOT_YET = "passed", "not answered yet"

UsersCode = Mapping[str, Mapping[str, str]]  # the hashes of the user's own code of "model" and "task"


class Speed(Record):
    """The speed of an engine with so many requests in flight. p99 is None where calls were too few for one. Then
    `slowest` is nearly the slowest of them, but for answers of earlier versions, which did not keep it."""

    batch: int
    requests: int
    p50: float
    p99: float | None
    images_per_second: float
    slowest: float | None = None


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


class Answers:
    """The answers about one model with one set of samples: a folder of history/fleet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def about(cls, params: Params, users_code: UsersCode, root: Path = FOLDER) -> Self:
        """Return where answers about the present model and samples are. Others have another folder, and stay. Ask after
        the run: the samples are known by what it made of them."""
        readable = re.sub(r"[^A-Za-z0-9]+", "-", params.model.source).strip("-")
        return cls(root / f"{readable}-{_digest_of_subject(params, users_code)[:8]}")

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


def _digest_of_subject(params: Params, users_code: UsersCode) -> str:
    """Return a digest of the parameters of the model, its weights and the samples, and of what is in their files: other
    images or other code under the same name are another subject. It is the same on all machines: weights that are
    trained are known by their samples, as each machine trains its own."""
    places = [] if params.weights.source in WEIGHTS_WITHOUT_FILE else [Path(params.weights.source)]
    if params.model.is_onnx:
        places.append(Path(params.model.source))
    if params.model.library == "transformers":
        places.append(Path(params.model.library_name))
    among = [file for place in places for file in (place.rglob("*") if place.is_dir() else [place])]
    made = hashes_of_outs(LOCK.read_bytes(), str(LOCK)) if LOCK.exists() else {}
    content: dict[str, Any] = {"files": {str(file): sha256(file) for file in among if file.is_file()}, **users_code}
    content["samples"] = made.get("samples", [])  # DVC's hashes of the samples as they were made last
    return sha256_of([what_is_measured(params), content])

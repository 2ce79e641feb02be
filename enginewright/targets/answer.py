"""The answer of a target, a JSON file in history/fleet/MODEL/ which git carries between machines, and the choice among
all answers for a limit of latency or of cost."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import HISTORY, LOCK, Record, sha256, sha256_of
from enginewright.core.params.all import Params
from enginewright.core.user_files import WEIGHTS_WITHOUT_FILE
from enginewright.engine.machine import Machine
from enginewright.measure.history import hashes_of_outs, what_is_measured
from enginewright.measure.records import Result
from enginewright.report.page.charts import unbeaten
from enginewright.targets.file import Fleet, Name

FOLDER = HISTORY / "fleet"
PASSED, NOT_YET = "passed", "not answered yet"
MILLION, SECONDS_OF_AN_HOUR = 1_000_000, 3600

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
        return [cls(folder) for folder in sorted(root.glob("*/"))]

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


# Choose what to take.


class Offer(NamedTuple):
    """One way to run the model, among those that passed. `latency` is the milliseconds that 99 of 100 answers keep, or
    the slowest, where they were too few to tell. `cost` is of a million images; None without a known price."""

    target: str
    precision: str
    speed: Speed
    latency: float
    cost: float | None

    @property
    def title(self) -> str:
        return f"{self.precision} on {self.target}"

    @property
    def how(self) -> str:
        return f"batch {self.speed.batch}" + (f", {self.speed.requests} requests" if self.speed.requests > 1 else "")


def cost_of(images_per_second: float, price_per_hour: float | None) -> float | None:
    """Return what a million images cost on a machine that is always busy."""
    return None if price_per_hour is None else price_per_hour * MILLION / images_per_second / SECONDS_OF_AN_HOUR


def offers_of(answers: Sequence[Answer], fleet: Fleet) -> list[Offer]:
    return [
        Offer(
            answer.target, one.precision, speed, latency, cost_of(speed.images_per_second, fleet.price(answer.target))
        )
        for answer in answers
        if not answer.failed
        for one in answer.precisions
        if one.verdict == PASSED
        for speed in one.speeds
        if (latency := speed.slowest if speed.p99 is None else speed.p99) is not None
    ]


def frontier(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers that no other beats in both latency and cost, the quickest first. Where no price is known,
    images per second take the place of cost; with some prices, what has none cannot be compared and is left out."""
    priced = [offer for offer in offers if offer.cost is not None] or offers
    return unbeaten(priced, lambda one: (one.latency, -one.speed.images_per_second if one.cost is None else one.cost))


def choose(offers: Sequence[Offer], latency: float | None, budget: float | None) -> Offer:
    """Return the cheapest offer within the limit of latency, in milliseconds. With a budget for a million images alone,
    return the quickest that costs no more."""
    best = frontier(offers)
    if not best:
        raise EnginewrightError("no precision passed on any target that answered")
    if budget is not None and best[0].cost is None:
        raise EnginewrightError("--budget needs prices: give targets a price_per_hour in fleet.yaml")
    in_time = [one for one in best if latency is None or one.latency <= latency]
    if not in_time:
        unpriced = any(one.cost is None for one in offers) and best[0].cost is not None
        what = "nothing with a price" if unpriced else "nothing"
        raise EnginewrightError(f"{what} answers within {latency:g} ms; the quickest is {described(best[0])}")
    affordable = [one for one in in_time if budget is None or (one.cost is not None and one.cost <= budget)]
    if not affordable:
        limit = "" if latency is None else f" and answers within {latency:g} ms"
        raise EnginewrightError(
            f"nothing costs {budget:g} or less for a million images{limit}; the cheapest is {described(in_time[-1])}"
        )
    return affordable[0] if latency is None else affordable[-1]


def described(offer: Offer) -> str:
    cost = "" if offer.cost is None else f", {offer.cost:.3g} for a million images"
    rate = f"{offer.speed.images_per_second:,.0f} images per second"
    few = " (the slowest of few calls)" if offer.speed.p99 is None else ""
    return f"{offer.title}, {offer.how}: {offer.latency:.3g} ms{few}, {rate}{cost}"

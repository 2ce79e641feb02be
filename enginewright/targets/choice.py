"""Choose the target, precision and batch for a limit of latency or of cost."""

from collections.abc import Sequence
from typing import NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.targets.answer import PASSED, Answer, Speed
from enginewright.targets.file import Fleet

MILLION, SECONDS_OF_AN_HOUR = 1_000_000, 3600


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
    """Return the offers that no other beats in both latency and cost, the quickest first. Where no price is known at
    all, images per second take the place of cost; with some prices, what has none cannot be compared and is left
    out."""
    best: list[Offer] = []
    priced = [offer for offer in offers if offer.cost is not None] or offers
    for offer in sorted(priced, key=lambda one: (one.latency, _burden(one))):
        if not best or _burden(offer) < _burden(best[-1]):
            best.append(offer)
    return best


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


def _burden(offer: Offer) -> float:
    return -offer.speed.images_per_second if offer.cost is None else offer.cost

"""Ask all targets of a fleet, keep what they answer, and read it again for the page."""

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from enginewright.core.errors import EnginewrightError, sentence_of
from enginewright.core.params.all import Params
from enginewright.core.version import revision
from enginewright.targets.answer import NOT_YET, PASSED, Answer, Answers, Speed
from enginewright.targets.file import Fleet, Here, OnNode, OnRunner, Target
from enginewright.targets.here import answer_here


def ask_fleet(fleet: Fleet) -> list[str]:
    """Ask this machine first, with nothing beside it, and then all nodes at once. Runners answer by themselves. Return
    the names of the targets that failed. Those that cannot be asked are told before."""
    params, commit = Params.read(), revision()
    for target in fleet.targets:
        if isinstance(target, OnRunner):
            print(
                f"{target.name} is not asked from here: {_its_job(target)}, and ask again for the page",
                file=sys.stderr,
                flush=True,
            )
    failed = {}
    for target, answer in _asked(fleet, commit):  # whatever is known is written at once: this process may be killed
        if isinstance(answer, Answer):
            print(f"{target.name} answered, on {answer.node}", file=sys.stderr, flush=True)
            Answers.about(params).keep(answer)
        else:
            print(f"{target.name} failed: {answer}", file=sys.stderr, flush=True)
            failure, about = Answer.without_figures(target.name, params, answer), Answers.about(params)
            failed[target.name] = failure, about, about.of(target.name)
            about.keep(failure)
    now = Answers.about(params)  # the run may have made other samples than those that the first failures were kept with
    for failure, about, before in failed.values():
        if about.folder != now.folder:
            about.put_back(failure.target, before)
            now.keep(failure)
    return list(failed)


def answer_as(target: OnRunner) -> bool:
    """Answer for a runner, which is this machine. Tell whether it could."""
    params = Params.read()
    answer = _try_here(target, revision())
    found = answer if isinstance(answer, Answer) else Answer.without_figures(target.name, params, answer)
    Answers.about(params).keep(found)
    return not found.failed


def known_answers(fleet: Fleet) -> dict[str, list[Answer]]:
    """Return the answers that there are by model, in the order of the fleet. A target without one has a row, too."""
    found = {}
    for kept in Answers.of_all_models():
        there = {target.name: kept.of(target.name) for target in fleet.targets}
        if model := next((answer.model for answer in there.values() if answer), None):
            missing = {one.name: Answer(target=one.name, model=model, failed=_how_to_ask(one)) for one in fleet.targets}
            found[f"{model} ({kept.folder.name[-8:]})"] = [there[name] or missing[name] for name in there]
    return found


def _asked(fleet: Fleet, commit: str) -> Iterator[tuple[Target, Answer | str]]:
    on_nodes = [target for target in fleet.targets if isinstance(target, OnNode)]
    if on_nodes and fleet.cluster:
        from enginewright.targets.nodes import refused

        why_not = refused(on_nodes, fleet.cluster, commit)
        yield from ((target, str(error)) for target, error in why_not.items())
        on_nodes = [target for target in on_nodes if target not in why_not]
    for target in fleet.targets:
        if isinstance(target, Here):
            yield target, _try_here(target, commit)
    if on_nodes and fleet.cluster:
        from enginewright.targets.nodes import ask_nodes

        for target, answer in ask_nodes(on_nodes, fleet.cluster, commit):
            yield target, answer if isinstance(answer, Answer) else str(answer)


def _try_here(target: Target, commit: str) -> Answer | str:
    try:
        return answer_here(target.name, commit)
    except Exception as error:
        if sentence := sentence_of(error):
            return sentence
        raise


def _how_to_ask(target: Target) -> str:
    if isinstance(target, OnRunner):
        return f"{NOT_YET}: {_its_job(target)}"
    return f"{NOT_YET}: `enginewright fleet --target {target.name}` asks it"


def _its_job(target: OnRunner) -> str:
    return f"the nightly job on the runner {target.label} commits its answer; then `git pull`"


# Choose the target, precision and batch for a limit of latency or of cost.

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
    prices = {target.name: target.price_per_hour for target in fleet.targets}
    return [
        Offer(answer.target, one.precision, speed, latency, cost_of(speed.images_per_second, prices[answer.target]))
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

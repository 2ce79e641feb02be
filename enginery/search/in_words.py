"""Say what a search found."""

import math

from enginery.core.params.precisions import Thresholds
from enginery.search.records import AIM, CHOOSING, MOST, Search


def in_words(found: Search) -> str:
    """Return what is spared, and what that buys, in one sentence without its stop."""
    all_int8, *others = found.path
    if not found.layers:
        return f"no layer can be in {found.precision}"
    if not others:
        return f"{_all(len(found.layers))} may be in {found.precision}, {_taken(all_int8.used)}"
    measured = sum(layer.loss is not None for layer in found.layers)
    unmeasured = "" if measured == len(found.layers) else f"; {measured} of {len(found.layers)} layers were measured"
    if not found.spared:
        closest = min(found.path, key=lambda step: step.used)
        return (
            f"no set of layers keeps the thresholds; the closest leaves {counted(closest.spared)} in floating point, "
            f"{closest.work:.0%} of the work, {_taken(closest.used)}{unmeasured}"
        )
    share = f"{found.chosen.work:.0%} of the work"
    stay = "stays" if len(found.spared) == 1 else "stay"
    spared = f"{len(found.spared)} of {counted(len(found.layers))} {stay} in floating point, {share}"
    all_of_them = f"all of them in {found.precision} would take {all_int8.used:.0%}"
    return f"{spared}, {_taken(found.chosen.used)}; {all_of_them}{unmeasured}"


def too_few_samples(found: Search, limits: Thresholds, given: int) -> str | None:
    """Return a sentence without its stop if layers are spared for the sake of one of the samples that were `given`,
    which chance may decide, and more would tell."""
    first, allowed = found.path[0], AIM * min(1 - limits.agreement, limits.metric_drop)
    share = 1 / first.looked_at
    if not found.spared or len(first.changed) != 1 or first.used_by_errors(limits) > AIM or not 0 < allowed < share:
        return None
    needed = math.ceil(1 / allowed) + CHOOSING
    if sum(found.samples) < given or needed > MOST:  # a search does not look at all
        return None
    return (
        f"one sample of {first.looked_at} is {share:.1%} of them, more than the search aims at, and its other answer "
        f"alone keeps layers in floating point: with samples.calibration of {needed} or more, fewer may stay there"
    )


def _all(layers: int) -> str:
    return "the only layer" if layers == 1 else f"all {layers} layers"


def counted(layers: int) -> str:
    return f"{layers} layer{'s' * (layers != 1)}"


def _taken(used: float) -> str:
    return f"which takes {used:.0%} of what the thresholds allow"

"""Say what a search found."""

from enginewright.search.records import Search, Step


def in_words(found: Search) -> str:
    """Return what is spared, and what that buys, in one sentence without its stop."""
    all_int8, *others = found.path
    if not found.layers:
        return f"no layer can be in {found.precision}"
    if not others:
        return f"{_all(len(found.layers))} may be in {found.precision}, {_taken(all_int8)}"
    measured = sum(layer.loss is not None for layer in found.layers)
    unmeasured = "" if measured == len(found.layers) else f"; {measured} of {len(found.layers)} layers were measured"
    if not found.spared:
        closest = min(found.path, key=lambda step: max(step.used, step.at_most or step.used))
        return (
            f"no set of layers keeps the thresholds; the closest leaves {counted(closest.spared)} in floating point, "
            f"{closest.work:.0%} of the work, {_taken(closest)}{unmeasured}"
        )
    share = f"{found.chosen.work:.0%} of the work"
    stay = "stays" if len(found.spared) == 1 else "stay"
    spared = f"{len(found.spared)} of {counted(len(found.layers))} {stay} in floating point, {share}"
    all_of_them = f"all of them in {found.precision} would take {all_int8.used:.0%}"
    return f"{spared}, {_taken(found.chosen)}; {all_of_them}{unmeasured}"


def _all(layers: int) -> str:
    return "the only layer" if layers == 1 else f"all {layers} layers"


def counted(layers: int) -> str:
    return f"{layers} layer{'s' * (layers != 1)}"


def _taken(step: Step) -> str:
    others = "" if step.at_most is None else f", and on other samples up to {step.at_most:.0%} of the error allowed"
    return f"which takes {step.used:.0%} of what the thresholds allow{others}"

"""Say what was mixed, what that promised, and what it delivered."""

from enginewright.mixing.records import Mix, Times
from enginewright.mixing.ways import Way
from enginewright.search.records import AIM


def in_words(mix: Mix) -> str:
    """Return the answer in one or two sentences, without the last stop."""
    if mix.mixed is None:
        no_mix = (
            "no mix of them keeps the thresholds on calibration samples"
            if len(mix.candidates) > len(mix.types)
            else "by the times of their layers no mix of them would be faster"
        )
        return f"{mix.precision} is {_rival(mix)}: {no_mix}"
    mixed = _parts(mix, mix.candidates[mix.mixed].way)
    promised = f"layer times promised {_times(mix.promised)} the speed of {mix.rival}"
    if mix.delivered is None:
        where = f"{mix.traces}, from {mix.machine}"
        nothing = f"{promised}, and nothing was raced, because layer times are those of {where}"
        return f"{mix.precision} is {mixed}; {nothing}"
    delivered = f"{promised}, and a race delivered {_times(mix.delivered)}"
    if mix.delivers:
        return f"{mix.precision} is {mixed}: {delivered}"
    return f"{mix.precision} is {_rival(mix)}: for the best mix, {mixed}, {delivered}"


def _parts(mix: Mix, way: Way) -> str:
    base, first, *more = (name for name in mix.types if name in way)
    others = "".join(f" and {way.count(name)} in {name}" for name in more)
    return f"{base} with {way.count(first)} of {len(way)} parts in {first}{others}"


def _rival(mix: Mix) -> str:
    """Name the rival, and say why it is the one."""
    used = {name: each.used for name, each in zip(mix.types, mix.candidates, strict=False) if name != mix.rival}
    slower = [name for name in used if used[name] <= AIM]
    lost = [f"{name} takes {used[name]:.0%}" for name in used if used[name] > AIM]
    why = [f"faster than {' and '.join(slower)}"] if slower else []
    why += [f"while {' and '.join(lost)} of what the thresholds allow"] if lost else []
    return ", ".join([mix.rival, *why])


def _times(times: Times | None) -> str:
    return f"{times.middle:.3f} times ({times.low:.3f} to {times.high:.3f})" if times else "nothing"

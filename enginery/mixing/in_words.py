"""Say what was mixed, what that promised, and what it delivered."""

from enginery.mixing.records import Mix, Times
from enginery.search.records import AIM


def in_words(mix: Mix) -> str:
    """Return the answer in one or two sentences, without the last stop."""
    int8, beside = f"{mix.precision} is int8", f"{mix.beside}"
    if mix.mixed is None:
        no_mix = (
            "no mix of the two keeps the thresholds on calibration samples"
            if len(mix.candidates) > 2
            else "by the times of their layers no mix of the two would be faster"
        )
        return f"{mix.precision} is {_rival(mix)}: {no_mix}"
    number = len(mix.candidates[mix.mixed].floating)
    parts = f"with {number} of {len(mix.blocks)} parts in {beside}"
    promised = f"layer times promised {_times(mix.promised)} the speed of {mix.rival}"
    if mix.delivered is None:
        where = f"{mix.traces}, from {mix.machine}"
        return f"{int8} {parts}; {promised}, and nothing was raced, because layer times are those of {where}"
    delivered = f"{promised}, and a race delivered {_times(mix.delivered)}"
    if mix.delivers:
        return f"{int8} {parts}: {delivered}"
    return f"{mix.precision} is {_rival(mix)}: for the best mix, int8 {parts}, {delivered}"


def _rival(mix: Mix) -> str:
    """Name the rival, and say why it is the one."""
    int8, other = (candidate.used for candidate in mix.candidates[:2])
    lost = other if mix.rival == "int8" else int8
    if lost > AIM:
        return f"{mix.rival}, as the other takes {lost:.0%} of what the thresholds allow"
    return f"{mix.rival}, the faster of int8 and {mix.beside}"


def _times(times: Times | None) -> str:
    return f"{times.middle:.3f} times ({times.low:.3f} to {times.high:.3f})" if times else "nothing"

"""Say what was mixed, what that promised, and what it delivered."""

from enginery.mixing.records import Mix, Times


def in_words(mix: Mix) -> str:
    """Return the answer in one or two sentences, without the last stop."""
    int8, beside = f"{mix.precision} is int8", f"{mix.beside}"
    if mix.mixed is None:
        return (
            f"{mix.precision} is {mix.rival}, the faster of int8 and {beside}: by the times of their layers no mix of "
            "the two would be faster"
        )
    number = len(mix.candidates[mix.mixed].floating)
    parts = f"with {number} of {len(mix.blocks)} parts in {beside}"
    promised = f"layer times promised {_times(mix.promised)} the speed of {mix.rival}"
    if mix.delivered is None:
        return f"{int8} {parts}; {promised}, and nothing was raced, because layer times are those of {mix.traces}"
    delivered = f"{promised}, and a race delivered {_times(mix.delivered)}"
    if mix.delivers:
        return f"{int8} {parts}: {delivered}"
    return f"{mix.precision} is {mix.rival}: for the best mix, int8 {parts}, {delivered}"


def _times(times: Times | None) -> str:
    return f"{times.middle:.3f} times ({times.low:.3f} to {times.high:.3f})" if times else "nothing"

"""Choose among int8, float precisions and mixes of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.precision.mixing.race import CONFIDENCE, SEED, Made, Raced, Races
from enginewright.precision.mixing.records import Assignment, Candidate, Speedup
from enginewright.precision.mixing.traces import LayersTimes
from enginewright.precision.search.records import AIM

INT8 = 0  # its number among the candidates
RESAMPLES = 1000
NANOSECOND = 1e-6  # in milliseconds: OpenVINO counts in microseconds, of which a tiny network may take none


class Choice(NamedTuple):
    candidates: tuple[Candidate, ...]
    mixed: int | None  # the best mix, if there is any
    rival: PrecisionName  # the fastest of those in one type
    promised: Speedup | None  # the mix over it
    delivered: Speedup | None

    @property
    def taken(self) -> Assignment | None:
        """Return the mix if it is made: if it won, or nothing was raced."""
        if self.mixed is None or (self.delivered is not None and self.delivered.low <= 1):
            return None
        return self.candidates[self.mixed].assignment

    @property
    def made_as(self) -> PrecisionName:
        """Return how the answer is made: a mix as int8 with nodes in other types."""
        return "int8" if self.taken else self.rival


def choose(
    precision: str,
    types: Sequence[PrecisionName],
    made: Sequence[Made],
    layers: Sequence[LayersTimes],
    races: Races | None,
    seconds: float,
) -> Choice:
    """Race all that keep the thresholds, then the fastest mix against the fastest that is in one type.

    Those in one type are first in `made`, in the order of `types`. `layers` has the times of the layers of each
    candidate. They decide without races.
    """
    pure = range(len(types))
    kept = [number for number, each in enumerate(made) if each.used <= AIM]
    rivals, mixes = [one for one in kept if one in pure], [one for one in kept if one not in pure]
    if not rivals:
        closest = min(made[number].used for number in pure)
        raise EnginewrightError(
            f"mix.{precision}: neither {' nor '.join(types)} keeps precisions.{precision}.thresholds on calibration "
            f"samples; the closest takes {closest:.0%} of what they allow, and {AIM:.0%} may be taken"
        )
    promised = [promise(layers[INT8], layers[number]) for number in range(len(made))]
    timed = [*pure, *mixes] if races else []
    raced = races.race_all(timed, seconds) if races else None

    def speed(number: int) -> float:
        return (raced.times_over(INT8, number) if raced else promised[number]).middle

    rival, mixed = max(rivals, key=speed), max(mixes, key=speed, default=None)
    return Choice(
        candidates=tuple(
            Candidate(
                assignment=each.assignment,
                used=each.used,
                promised=promised[number],
                raced=speed(number) if number in timed else None,
            )
            for number, each in enumerate(made)
        ),
        mixed=mixed,
        rival=types[rival],
        promised=None if mixed is None else promise(layers[rival], layers[mixed]),
        delivered=_delivered(races, raced, rival, mixed, seconds) if races and raced and mixed is not None else None,
    )


def _delivered(races: Races, raced: Raced, rival: int, mixed: int, seconds: float) -> Speedup:
    """Race the mix anew, unless it has lost already: the choice of the fastest mix flatters it."""
    first = raced.times_over(rival, mixed)
    return first if first.high < 1 else races.laps_of(rival, mixed, seconds)


def promise(rival: LayersTimes, mix: LayersTimes) -> Speedup:
    """Return how many times as fast a mix is as its rival, if each layer takes its median over the turns.

    A turn is over in milliseconds, and something else may have the machine then: the sum of a turn would tell of that.
    """
    turns = np.random.default_rng(SEED).integers(0, len(mix), (RESAMPLES, len(mix)))
    whole, *drawn = (_total(rival[each]) / _total(mix[each]) for each in (slice(None), *turns))
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Speedup(middle=whole, low=float(low), high=float(high))


def _total(layers: LayersTimes) -> float:
    return max(float(np.median(layers, axis=0).sum()), NANOSECOND)

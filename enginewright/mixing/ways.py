"""Find the type of each block, from the times of all blocks in each type."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from enginewright.core.precisions import PrecisionName

# The price of a change of type between two blocks, as a share of the int8 engine's time. It stands for casts, whose
# time no trace shows beforehand, and for noise: with a small price a block moves for little, with a large one few do.
PRICES = (0.005, 0.01, 0.02, 0.04)
Way = tuple[PrecisionName, ...]  # the type of each block
BlocksTimes = Mapping[PrecisionName, Sequence[float]]  # the milliseconds of each block in each type, int8 first


class Begun(NamedTuple):
    """A way through the first blocks."""

    cost: float
    way: Way


def ways_worth_trying(times: BlocksTimes) -> list[Way]:
    """Return the cheapest way for each price, without those that are all in one type."""
    whole = sum(times["int8"])
    ways = dict.fromkeys(cheapest_way(times, price * whole) for price in PRICES)
    return [way for way in ways if len(set(way)) > 1]


def cheapest_way(times: BlocksTimes, price: float) -> Way:
    """Return the cheapest way through all blocks. Of ways that cost the same, it ends in the first type."""
    cost = attrgetter("cost")
    begun = dict.fromkeys(times, Begun(0.0, ()))  # the cheapest way that ends in each type
    for block in zip(*times.values(), strict=True):
        cheapest = min(begun.values(), key=cost)
        changed = cheapest._replace(cost=cheapest.cost + price)
        before = [min(stays, changed, key=cost) for stays in begun.values()]
        begun = {
            name: Begun(so_far.cost + time, (*so_far.way, name))
            for name, time, so_far in zip(times, block, before, strict=True)
        }
    return min(begun.values(), key=cost).way

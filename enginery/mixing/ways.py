"""Find which blocks to leave in floating point, from the times of all blocks in either type."""

from collections.abc import Sequence

# The price of a change of type between two blocks, as a share of the int8 engine's time. It stands for casts, whose
# time no trace shows beforehand, and for noise: with a small price a block moves for little, with a large one few do.
PRICES = (0.005, 0.01, 0.02, 0.04)
Way = tuple[int, ...]  # the numbers of the blocks in floating point


def ways_worth_trying(quantized: Sequence[float], floating: Sequence[float]) -> list[Way]:
    """Return the cheapest way for each price, without those that are all in one type."""
    whole = sum(quantized)
    ways = dict.fromkeys(cheapest_way(quantized, floating, price * whole) for price in PRICES)
    return [way for way in ways if 0 < len(way) < len(quantized)]


def cheapest_way(quantized: Sequence[float], floating: Sequence[float], price: float) -> Way:
    """Return the blocks in floating point of the cheapest way through all blocks."""
    ends_int8: tuple[float, Way] = (0.0, ())  # the cheapest way so far that ends in int8, and what it costs
    ends_floating: tuple[float, Way] = (0.0, ())
    for number, (in_int8, in_floating) in enumerate(zip(quantized, floating, strict=True)):
        stays, left = min(ends_int8, _dearer(ends_floating, price)), min(ends_floating, _dearer(ends_int8, price))
        ends_int8 = _dearer(stays, in_int8)
        ends_floating = (left[0] + in_floating, (*left[1], number))
    return min(ends_int8, ends_floating)[1]


def _dearer(one: tuple[float, Way], cost: float) -> tuple[float, Way]:
    return one[0] + cost, one[1]

"""Scales: from figures to places in a picture, and to the short labels of an axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

NICE_STEPS = (1, 2, 2.5, 5, 10)
MOST_TICKS, MOST_POWERS = 4, 6
ROOM = 0.1  # powers of ten at either end: a mark on the very edge would hide its label
TIMES = "\N{MULTIPLICATION SIGN}"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """A range of figures, mapped to places from 0 to 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        if self.logarithmic:
            low, high, value = (math.log10(number) for number in (self.low, self.high, max(value, self.low)))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    @property
    def ticks(self) -> list[float]:
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first) / MOST_POWERS))
            return [10.0**power for power in range(first, last + 1, every)]
        first, last = math.ceil(self.low / self._step - 1e-9), math.floor(self.high / self._step + 1e-9)
        return [number * self._step for number in range(first, last + 1)]

    def tick_label(self, tick: float) -> str:
        """Write a tick with as many decimals as tell it from the next one."""
        if self.logarithmic:
            return f"10{_superscript(round(math.log10(tick)))}"
        decimals = next((digits for digits in range(9) if abs(math.remainder(self._step * 10**digits, 1)) < 1e-6), 9)
        return f"{tick:,.{decimals}f}"

    @property
    def _step(self) -> float:
        return _nice((self.high - self.low) / MOST_TICKS)


def from_zero(values: Iterable[float]) -> Scale:
    """Return a scale for lengths, which mislead unless they begin at zero."""
    return Scale(0.0, max(values, default=0.0) or 1.0)


def around(values: Iterable[float], most: float) -> Scale:
    """Return a scale for places that ends on ticks, with room on both sides, but not beyond the most there can be."""
    found = list(values)
    low, high = min(found), max(found)
    room = (high - low) or abs(high) * 0.01 or 1.0
    step = _nice(1.5 * room / MOST_TICKS)
    return Scale(math.floor((low - room / 10) / step) * step, min(most, math.ceil((high + room / 10) / step) * step))


def decades(values: Iterable[float], least: float) -> Scale:
    """Return a scale of whole powers of ten, with room on both sides. Anything below `least` is drawn at `least`."""
    found = [math.log10(max(value, least)) for value in values]
    low, high = math.floor(min(found) - ROOM), math.ceil(max(found) + ROOM)
    return Scale(10.0**low, 10.0**high, logarithmic=True)


def short(value: float) -> str:
    """Write a figure with three digits: more are not known."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}{TIMES}10{_superscript(int(power))}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _superscript(power: int) -> str:
    return str(power).translate(SUPERSCRIPTS)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(nice * power for nice in NICE_STEPS if step <= nice * power * (1 + 1e-9))

"""The record of the state of a GPU while it was timed."""

from enginewright.core.record import Record


class GpuConditions(Record):
    """Clocks in MHz, watts and degrees Celsius over all samples; the share of them that each throttling was seen in."""

    samples: int
    clock_low: int
    clock_median: int
    clock_high: int
    memory_clock: int
    power_median: float
    power_high: float
    temperature_high: int
    throttled: dict[str, float]

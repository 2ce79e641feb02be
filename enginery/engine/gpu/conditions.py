"""The state of the GPU while it was timed."""

from enginery.core.record import Record


class GpuConditions(Record):
    """The state of the GPU while it was timed, over all samples: clocks in MHz, watts, degrees Celsius."""

    samples: int
    clock_low: int
    clock_median: int
    clock_high: int
    memory_clock: int
    power_median: float
    power_high: float
    temperature_high: int
    throttled: dict[str, float]

"""How far single timings may scatter, and what may disturb the machine, before a ratio made of them is not believed."""

from typing import NamedTuple

from enginery.speed.contention import disturbances
from enginery.speed.records import ENGINE, WARM_UP_AGREEMENT, Benchmark, Ratio, baseline_title

# What these leave alone was seen on a machine that nothing else used, a virtual one with two cores.
WIDEST_INTERVAL, WIDEST_SPREAD, MOST_OUTLIERS, STEADY_CLOCK = 0.1, 0.15, 0.05, 0.95

# What a slow or busy machine may do to ratios, all batch sizes together: four runs of one engine differed by 1.2 times.
MOST_A_MACHINE_DOES = 1.5


class Excess(NamedTuple):
    """What is wider than it may be, and how many times as wide."""

    what: str
    times: float


def disturbed(timed: Benchmark) -> list[str]:
    """By what, while it was timed: other programs, the host, or the GPU's own clocks."""
    gpu, found = timed.gpu, disturbances(timed.contention, timed.threads)
    if gpu and gpu.clock_low < STEADY_CLOCK * gpu.clock_high:
        found.append(f"the GPU's clock moved between {gpu.clock_low} and {gpu.clock_high} MHz")
    if gpu and gpu.throttled:
        found.append(f"the GPU was throttled: {', '.join(gpu.throttled)}")
    return found


def scatters(ratio: Ratio, benchmark: Benchmark) -> bool:
    return bool(scattering(ratio, benchmark))


def scattering(ratio: Ratio, benchmark: Benchmark) -> list[Excess]:
    """Of the ratio's own interval, and of the calls that it was made of."""
    interval = (ratio.high - ratio.low) / ratio.median
    found = [
        Excess(
            f"the interval of the ratio to {baseline_title(ratio.baseline)} is {interval:.0%} of it",
            interval / WIDEST_INTERVAL,
        )
    ]
    owners = {ENGINE: "the engine's", ratio.baseline: f"{baseline_title(ratio.baseline)}'s"}
    for latency in benchmark.latencies:
        if latency.batch == ratio.batch and latency.contender in owners:
            whose = owners[latency.contender]
            spread, outliers, unrest = latency.spread, latency.outliers, latency.unrest
            found += [
                Excess(f"the middle half of {whose} calls spreads over {spread:.0%}", spread / WIDEST_SPREAD),
                Excess(f"{outliers:.0%} of {whose} calls took over twice as long as most", outliers / MOST_OUTLIERS),
                Excess(
                    f"{whose} warm-up had not settled: its last two windows differed by {unrest:.0%}",
                    unrest / WARM_UP_AGREEMENT,
                ),
            ]
    return [excess for excess in found if excess.times > 1]

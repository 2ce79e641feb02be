"""Decide whether a ratio is too noisy to be believed: its timings scatter too much, or the machine was disturbed."""

from typing import NamedTuple

from enginewright.speed.contention import contention_problems
from enginewright.speed.records import ENGINE, WARM_UP_AGREEMENT, Benchmark, Ratio, baseline_title

# A virtual machine with two cores that nothing else used stayed within these limits.
WIDEST_INTERVAL, WIDEST_SPREAD, MOST_OUTLIERS, STEADY_CLOCK = 0.1, 0.15, 0.05, 0.95

# A slow or busy machine changes ratios by less than this factor, all batch sizes together: the ratios of four runs of
# one engine were at most 1.2 times apart.
LARGEST_MACHINE_EFFECT = 1.5


class BrokenLimit(NamedTuple):
    """A noise limit that some timings broke: the sentence that says so, and how many times the limit they reach."""

    sentence: str
    factor: float


def machine_problems(timed: Benchmark) -> list[str]:
    """Return a sentence for each thing that disturbed the machine: other programs, the host, or the GPU's clocks."""
    gpu, found = timed.gpu, contention_problems(timed.contention, timed.threads)
    if gpu and gpu.clock_low < STEADY_CLOCK * gpu.clock_high:
        found.append(f"the GPU's clock moved between {gpu.clock_low} and {gpu.clock_high} MHz")
    if gpu and gpu.throttled:
        found.append(f"the GPU was throttled: {', '.join(gpu.throttled)}")
    return found


def broken_limits(ratio: Ratio, benchmark: Benchmark) -> list[BrokenLimit]:
    """Return the limits that the interval of a ratio breaks, or the calls of its two sides."""
    title = baseline_title(ratio.baseline)
    interval = (ratio.high - ratio.low) / ratio.median
    found = [BrokenLimit(f"the interval of the ratio to {title} is {interval:.0%} of it", interval / WIDEST_INTERVAL)]
    owners = {ENGINE: "the engine's", ratio.baseline: f"{title}'s"}
    for side in (each for each in benchmark.latencies if each.batch == ratio.batch and each.contender in owners):
        owner, spread, outliers, drift = owners[side.contender], side.spread, side.outliers, side.warm_up_drift
        unsettled = f"{owner} warm-up had not settled: its last two windows differed by {drift:.0%}"
        found += [
            BrokenLimit(f"the middle half of {owner} calls spreads over {spread:.0%}", spread / WIDEST_SPREAD),
            BrokenLimit(f"{outliers:.0%} of {owner} calls took over twice as long as most", outliers / MOST_OUTLIERS),
            BrokenLimit(unsettled, drift / WARM_UP_AGREEMENT),
        ]
    return [limit for limit in found if limit.factor > 1]

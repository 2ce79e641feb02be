"""How far single timings may scatter before a ratio made of them is not believed."""

from enginery.core.records import ENGINE, Benchmark, Ratio
from enginery.reporting.evidence import title_of

# What these leave alone was seen on a machine that nothing else used, a virtual one with two cores.
WIDEST_INTERVAL, WIDEST_SPREAD, MOST_OUTLIERS = 0.1, 0.15, 0.05

# What a slow or busy machine may do to ratios, all batch sizes together: four runs of one engine differed by 1.2 times.
MOST_A_MACHINE_DOES = 1.5


def scatters(ratio: Ratio, benchmark: Benchmark) -> bool:
    return bool(scattering(ratio, benchmark))


def scattering(ratio: Ratio, benchmark: Benchmark) -> list[str]:
    """What is wider than it may be: the ratio's own interval, or the calls that it was made of."""
    found, interval = [], ratio.high - ratio.low
    if interval > WIDEST_INTERVAL * ratio.median:
        found.append(f"the interval over {title_of(ratio.baseline)} is {interval / ratio.median:.0%} of it")
    owners = {ENGINE: "the engine's", ratio.baseline: f"{title_of(ratio.baseline)}'s"}
    for latency in benchmark.latencies:
        if latency.batch == ratio.batch and latency.contender in owners:
            whose = owners[latency.contender]
            if latency.spread > WIDEST_SPREAD:
                found.append(f"the middle half of {whose} calls spreads over {latency.spread:.0%}")
            if latency.outliers > MOST_OUTLIERS:
                found.append(f"{latency.outliers:.0%} of {whose} calls took over twice as long as most")
    return found

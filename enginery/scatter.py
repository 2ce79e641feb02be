"""How far single timings may scatter before a ratio made of them is not believed."""

from enginery.core.records import ENGINE, Benchmark, Ratio

# What these leave alone was seen on a machine that nothing else used, a virtual one with two cores.
WIDEST_INTERVAL, WIDEST_SPREAD, MOST_OUTLIERS = 0.1, 0.15, 0.05


def scatters(ratio: Ratio, benchmark: Benchmark) -> bool:
    """By its own interval, or by the calls that it was made of."""
    calls = [
        latency
        for latency in benchmark.latencies
        if latency.batch == ratio.batch and latency.contender in (ENGINE, ratio.baseline)
    ]
    return ratio.high - ratio.low > WIDEST_INTERVAL * ratio.median or any(
        latency.spread > WIDEST_SPREAD or latency.outliers > MOST_OUTLIERS for latency in calls
    )

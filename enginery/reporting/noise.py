"""When not to believe a ratio, and why."""

from enginery.core.records import ENGINE, Ratio
from enginery.reporting.evidence import Evidence, Findings

# What these leave alone was seen on a machine that nothing else used, a virtual one with two cores.
WIDEST_INTERVAL, WIDEST_SPREAD, MOST_OUTLIERS = 0.1, 0.15, 0.05
MOST_OTHERS, MOST_STOLEN = 0.15, 0.02  # cores
STEADY_CLOCK = 0.95


def noisy_ratios(findings: Findings) -> list[tuple[Evidence, Ratio, list[str]]]:
    ratios = [(entry, ratio) for entry in findings.precisions for ratio in entry.benchmark.ratios]
    return [(entry, ratio, why) for entry, ratio in ratios if (why := reasons(entry, ratio))]


def reasons(entry: Evidence, ratio: Ratio) -> list[str]:
    """Why this ratio is noisy; none if it is not."""
    found = []
    if ratio.high - ratio.low > WIDEST_INTERVAL * ratio.median:
        found.append(f"its interval is {(ratio.high - ratio.low) / ratio.median:.0%} of it")
    for contender in (ENGINE, ratio.baseline):
        latency = entry.latency(ratio.batch, contender)
        whose = "the engine's" if contender == ENGINE else f"PyTorch {contender}'s"
        if latency.spread > WIDEST_SPREAD:
            found.append(f"the middle half of {whose} calls spreads over {latency.spread:.0%}")
        if latency.outliers > MOST_OUTLIERS:
            found.append(f"{latency.outliers:.0%} of {whose} calls took over twice as long as most")
    return found + _taken_by_others(entry, ratio.batch) + _gpu_unsteady(entry)


def _taken_by_others(entry: Evidence, batch: int) -> list[str]:
    found = []
    contention = entry.contention(batch)
    if contention.others > contention.cores - entry.benchmark.threads + MOST_OTHERS:
        found.append(f"other programs took {contention.others:.1f} of {contention.cores} cores")
    if contention.stolen > MOST_STOLEN * contention.cores:
        found.append(f"the host took {contention.stolen:.2f} of {contention.cores} cores away")
    return found


def _gpu_unsteady(entry: Evidence) -> list[str]:
    gpu, found = entry.benchmark.gpu, []
    if gpu and gpu.clock_low < STEADY_CLOCK * gpu.clock_high:
        found.append(f"the GPU's clock moved between {gpu.clock_low} and {gpu.clock_high} MHz")
    if gpu and gpu.throttled:
        found.append(f"the GPU was throttled: {', '.join(gpu.throttled)}")
    return found

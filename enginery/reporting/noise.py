"""When not to believe a ratio, and why."""

from itertools import chain

from enginery.contention import disturbances
from enginery.core.records import SAME_PACE, Ratio
from enginery.reporting.evidence import Evidence, Findings
from enginery.scatter import scattering

STEADY_CLOCK = 0.95


def noisy_races(findings: Findings) -> list[tuple[Evidence, int, dict[str, None]]]:
    """Precision, batch size, and why ratios there are noisy, each reason once however many baselines share it."""
    return [
        (entry, batch, why)
        for entry in findings.precisions
        for batch in findings.batches
        if (why := dict.fromkeys(chain(*(reasons(entry, entry.ratio(batch, name)) for name in findings.baselines))))
    ]


def slowed(findings: Findings) -> dict[str, float]:
    """Precisions that were timed while the machine was slower than for another, and how many times as slow."""
    paces = {entry.precision: entry.benchmark.pace.microseconds for entry in findings.precisions}
    best = min((pace for pace in paces.values() if pace), default=0.0)
    return {precision: pace / best for precision, pace in paces.items() if pace and pace > SAME_PACE * best}


def reasons(entry: Evidence, ratio: Ratio) -> list[str]:
    """Why this ratio is noisy; none if it is not."""
    timed = entry.benchmark
    return scattering(ratio, timed) + disturbances(timed.contention, timed.threads) + _unsteady(entry)


def _unsteady(entry: Evidence) -> list[str]:
    gpu, found = entry.benchmark.gpu, []
    if entry.benchmark.pace.microseconds is None:
        found.append("the machine never kept to one pace")
    if gpu and gpu.clock_low < STEADY_CLOCK * gpu.clock_high:
        found.append(f"the GPU's clock moved between {gpu.clock_low} and {gpu.clock_high} MHz")
    if gpu and gpu.throttled:
        found.append(f"the GPU was throttled: {', '.join(gpu.throttled)}")
    return found

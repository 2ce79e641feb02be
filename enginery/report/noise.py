"""When not to believe a ratio, and why."""

from itertools import chain
from typing import NamedTuple

from enginery.report.evidence import Evidence, Findings
from enginery.speed.noise_limits import disturbed, scattering
from enginery.speed.records import SAME_PACE, Ratio


class Noise(NamedTuple):
    """How many of some ratios are noisy, and why, each reason once however many of them share it."""

    noisy: int
    ratios: int
    why: tuple[str, ...]


def noise_at(findings: Findings, entry: Evidence, batch: int) -> Noise:
    """Every reason, of one precision at one batch size."""
    found = [reasons(findings, entry, entry.ratio(batch, name)) for name in findings.baselines]
    return Noise(sum(map(bool, found)), len(found), tuple(dict.fromkeys(chain(*found))))


def noise_of(findings: Findings, entry: Evidence) -> Noise:
    """Of one precision: what was amiss all the time, and of what scatters that which is furthest beyond its limit."""
    at = [noise_at(findings, entry, batch) for batch in findings.batches]
    throughout, timed = meanwhile(findings, entry), entry.benchmark
    scattered = [(excess, ratio.batch) for ratio in timed.ratios for excess in scattering(ratio, timed)]
    if scattered:
        worst, batch = max(scattered, key=lambda found: found[0].times)
        among = "at worst, " if len(set(scattered)) > 1 else ""
        throughout = [*throughout, f"{among}{worst.what} at batch {batch}"]
    return Noise(sum(one.noisy for one in at), sum(one.ratios for one in at), tuple(throughout))


def slowed(findings: Findings) -> dict[str, float]:
    """Precisions that were timed while the machine was slower than for another, and how many times as slow."""
    paces = {entry.precision: entry.benchmark.pace.microseconds for entry in findings.precisions}
    best = min((pace for pace in paces.values() if pace), default=0.0)
    return {precision: pace / best for precision, pace in paces.items() if pace and pace > SAME_PACE * best}


def reasons(findings: Findings, entry: Evidence, ratio: Ratio) -> list[str]:
    """Why this ratio is noisy; none if it is not."""
    return [excess.what for excess in scattering(ratio, entry.benchmark)] + meanwhile(findings, entry)


def meanwhile(findings: Findings, entry: Evidence) -> list[str]:
    """What was amiss with the machine while this precision was timed, whatever the batch size and the baseline."""
    timed = entry.benchmark
    found = disturbed(timed)
    if times := slowed(findings).get(entry.precision):
        found.append(f"the machine was {times:.2f} times as slow as for another precision")
    if timed.pace.microseconds is None:
        found.append("the machine never kept to one pace")
    return found

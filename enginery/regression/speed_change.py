"""How far an engine's speed moved between two runs, what of that is chance, and which side of a ratio moved."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, mean
from typing import NamedTuple

from enginery.core.errors import EngineryError
from enginery.speed.records import Benchmark, Ratio

# How far the ratio of one engine to PyTorch moves between two runs beyond what their intervals tell: the standard
# deviations of its logarithm in one run, of each batch size by itself, and of all alike, for an engine that is opened
# anew is faster or slower for as long as it is open. benchmarks/alarm_ratios.py shows that they suffice.
BETWEEN_RUNS, AS_OPENED = 0.01, 0.02
MOST_OF_IT = 0.5
DRIFT = 0.03  # what both sides may share: a baseline that moved by less says nothing


class SpeedChange(NamedTuple):
    """As logarithms: of the ratio, with its standard errors, and of the baseline's time by the clock, if it has one."""

    batch: int | None  # None: of several together
    log: float
    error: float  # of this batch size alone
    shared: float = 0.0  # of all batch sizes alike, so that their mean has it too
    longer: float = 0.0
    before: float | None = None
    after: float | None = None

    @property
    def chance(self) -> float:
        return math.hypot(self.error, self.shared)

    @property
    def is_mostly_the_baselines(self) -> bool:
        """A ratio has two sides, and the baseline's code is the same: if most of a change is that side's, it was the
        machine or another PyTorch, and not the engine."""
        return abs(self.longer) > DRIFT and self.longer / self.log > MOST_OF_IT


SpeedChanges = Mapping[str, SpeedChange]  # by the figure that moved


def speed_change_between(before: Ratio, old: Benchmark, after: Ratio, new: Benchmark) -> SpeedChange:
    return SpeedChange(
        batch=after.batch,
        log=math.log(after.median / before.median),
        error=math.hypot(_error(before, old), _error(after, new)),
        shared=math.sqrt(2) * AS_OPENED,
        longer=math.log(_baseline_p50(after, new) / _baseline_p50(before, old)),
        before=before.median,
        after=after.median,
    )


def together(shifts: Sequence[SpeedChange]) -> SpeedChange:
    """Errors at different batch sizes are independent; of several baselines at one they share the engine's timings."""
    of_batches = [
        mean(each.error for each in shifts if each.batch == batch) for batch in {each.batch for each in shifts}
    ]
    return SpeedChange(
        batch=None,
        log=mean(each.log for each in shifts),
        error=math.hypot(*of_batches) / len(of_batches),
        shared=max(each.shared for each in shifts),
        longer=mean(each.longer for each in shifts),
    )


def _baseline_p50(ratio: Ratio, benchmark: Benchmark) -> float:
    p50s = {(each.contender, each.batch): each.p50 for each in benchmark.latencies}
    if (ratio.baseline, ratio.batch) not in p50s:
        raise EngineryError(
            f"{benchmark.precision}: no latency of {ratio.baseline} at batch {ratio.batch} was recorded"
        )
    return p50s[ratio.baseline, ratio.batch]


def _error(ratio: Ratio, benchmark: Benchmark) -> float:
    return math.hypot(error_within(ratio.low, ratio.high, benchmark.confidence), BETWEEN_RUNS)


def error_within(low: float, high: float, confidence: float) -> float:
    """The standard error of the logarithm of a ratio, as its interval has it."""
    return math.log(high / low) / 2 / NormalDist().inv_cdf((1 + confidence) / 2)

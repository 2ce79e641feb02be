"""Tell how much an engine's speed changed between two runs, how much of that is chance, and how much the baseline's."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, mean
from typing import NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.speed.records import Benchmark, Ratio

# The ratio of one engine to PyTorch differs between two runs by more than its intervals say. These are the standard
# deviations of its logarithm in one run: the part of each batch size, and the part that all batch sizes share, because
# an engine is a little faster or slower for as long as it is open. benchmarks/alarm_ratios.py shows that they suffice.
BETWEEN_RUNS, AS_OPENED = 0.01, 0.02
MOST_OF_A_CHANGE = 0.5
BASELINE_DRIFT = 0.03  # a baseline whose time moved by less is taken as unchanged: the engine's may have moved too


class SpeedChange(NamedTuple):
    """A change of speed between two runs, in logarithms."""

    batch: int | None  # None for several batch sizes together
    log: float  # above 0 if the later engine is faster
    error: float  # the standard error of `log` at this batch size
    shared: float = 0.0  # the standard error that all batch sizes have in common, so that their mean has it too
    baseline_log: float = 0.0  # of how many times as long the baseline took by the clock; 0 if there is none
    before: float | None = None
    after: float | None = None

    @property
    def deviation(self) -> float:
        """Return the whole standard error of `log`."""
        return math.hypot(self.error, self.shared)

    def times(self, confidence: float) -> tuple[float, float, float]:
        """Return how many times as fast the later engine is, and the ends of the interval around that."""
        margin = deviations_allowed(confidence, 1) * self.deviation
        return math.exp(self.log), math.exp(self.log - margin), math.exp(self.log + margin)

    @property
    def is_mostly_the_baseline(self) -> bool:
        """Tell whether most of the change is the baseline's, so that the machine or another PyTorch caused it."""
        return abs(self.baseline_log) > BASELINE_DRIFT and self.baseline_log / self.log > MOST_OF_A_CHANGE


SpeedChanges = Mapping[str, SpeedChange]  # by figure


def deviations_allowed(confidence: float, figures: int) -> float:
    """Return how many standard errors are left to chance, if the confidence is to hold for all figures together."""
    return NormalDist().inv_cdf(1 - (1 - confidence) / figures / 2)


def speed_change_between(before: Ratio, old: Benchmark, after: Ratio, new: Benchmark) -> SpeedChange:
    return SpeedChange(
        batch=after.batch,
        log=math.log(after.median / before.median),
        error=math.hypot(_error(before, old), _error(after, new)),
        shared=math.sqrt(2) * AS_OPENED,
        baseline_log=math.log(_baseline_p50(after, new) / _baseline_p50(before, old)),
        before=before.median,
        after=after.median,
    )


def combine(speed_changes: Sequence[SpeedChange]) -> SpeedChange:
    """Return the mean of some speed changes."""
    # Errors at different batch sizes are independent. Several baselines at one batch size share the engine's timings.
    batches = {each.batch for each in speed_changes}
    errors = [mean(each.error for each in speed_changes if each.batch == batch) for batch in batches]
    return SpeedChange(
        batch=None,
        log=mean(each.log for each in speed_changes),
        error=math.hypot(*errors) / len(errors),
        shared=max(each.shared for each in speed_changes),
        baseline_log=mean(each.baseline_log for each in speed_changes),
    )


def standard_error(low: float, high: float, confidence: float) -> float:
    """Return the standard error of a ratio's logarithm from the ratio's interval."""
    return math.log(high / low) / 2 / NormalDist().inv_cdf((1 + confidence) / 2)


def _error(ratio: Ratio, benchmark: Benchmark) -> float:
    return math.hypot(standard_error(ratio.low, ratio.high, benchmark.confidence), BETWEEN_RUNS)


def _baseline_p50(ratio: Ratio, benchmark: Benchmark) -> float:
    p50s = {(each.contender, each.batch): each.p50 for each in benchmark.latencies}
    if (ratio.baseline, ratio.batch) not in p50s:
        timed = f"{ratio.baseline} at batch {ratio.batch}"
        raise EnginewrightError(f"{benchmark.precision}: no latency of {timed} was recorded")
    return p50s[ratio.baseline, ratio.batch]

"""Tell how much an engine's speed changed between two runs, how much of that is chance, and how much the baseline's."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, mean, median
from typing import NamedTuple

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import REPORTS
from enginewright.measure.benchmark import FILE, WRITTEN_BY, ExportedTimes, Parts, read_exported_times
from enginewright.measure.changes import Change, judge_factor, not_comparable
from enginewright.measure.speed_records import Benchmark, Ratio

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


# Compare the timings of a GPU in two files, of which either may be trtexec's.

FILES = f"benchmark/*/{FILE.format('*')}"  # in the reports folder
BLOCKS, SHORTEST_BLOCK = 20, 5
NOT_NAMED = ""  # such a file does not say which precision it is of
LIMITS = """\
Timings alone were compared, and neither accuracy nor what was executed. They
do not say of which engine, precision and batch size they are, on which
machine, and what disturbed it."""


def holds_exported_times(place: str) -> bool:
    """Tell whether this is a file with a list, as trtexec writes it: measurements.json has an object."""
    path = Path(place)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(100).lstrip().startswith(b"[")


def find_exported_times(place: str) -> ExportedTimes:
    """Read a file, or the only one in a reports folder."""
    path = Path(place)
    if path.is_file():
        return read_exported_times(path)
    found = sorted(path.glob(FILES)) if path.is_dir() else []
    if len(found) == 1:
        return read_exported_times(found[0])
    if found:
        raise EnginewrightError(f"{place} has several files of timings: give one of {', '.join(map(str, found))}")
    raise EnginewrightError(
        f"{place} is no file of {WRITTEN_BY}, as the other side is, and no reports folder with one: "
        f"on a GPU, `dvc repro` writes {REPORTS / FILES}"
    )


def compare_times(before: ExportedTimes, after: ExportedTimes, confidence: float) -> list[Change]:
    """Compare the median time with its copies, by the device's clock, and that of the compute alone."""
    latency, compute = "latency with copies", "GPU compute"
    deviations = deviations_allowed(confidence, figures=2)
    without = [times.place for times in (before, after) if not times.has_copies]
    if without:
        why = f"no copies were timed in {' and '.join(without)}: trtexec does with --includeDataTransfers"
        first = not_comparable(NOT_NAMED, latency, why)
    else:
        first = _compare(latency, before, after, lambda call: call.latency, deviations)
    return [first, _compare(compute, before, after, lambda call: call.compute, deviations)]


def _compare(
    figure: str, before: ExportedTimes, after: ExportedTimes, part: Callable[[Parts], float], deviations: float
) -> Change:
    series = [[part(call) for call in times.calls] for times in (before, after)]
    for times, values in zip((before, after), series, strict=True):
        if len(values) < BLOCKS * SHORTEST_BLOCK:
            why = (
                f"{times.place} has {len(values)} timings, and {BLOCKS * SHORTEST_BLOCK} are needed: measure for longer"
            )
            return not_comparable(NOT_NAMED, figure, why)
        if min(_medians_of_blocks(values)) == 0:
            return not_comparable(NOT_NAMED, figure, f"{times.place} says that it took no time")
    was, now = map(median, series)
    # A run differs from another one of the same engine by more than its own timings show: see speed_change.py.
    errors = [*map(_error_of_median, series), *[BETWEEN_RUNS, AS_OPENED] * 2]
    return judge_factor(NOT_NAMED, figure, math.log(was / now), deviations * math.hypot(*errors), was, now)


def _error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median's logarithm, from blocks of calls in a row: calls that follow one another
    resemble one another, and would make it look smaller than it is."""
    return float(np.std(np.log(_medians_of_blocks(values)), ddof=1)) / math.sqrt(BLOCKS)


def _medians_of_blocks(values: Sequence[float]) -> list[float]:
    return [float(np.median(block)) for block in np.array_split(np.array(values), BLOCKS)]

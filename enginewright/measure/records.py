"""The records of accuracy and speed, in the JSON of the stages reference, validate, benchmark and trace."""

from enum import Enum
from math import isnan
from typing import NamedTuple

from pydantic import PositiveFloat
from typing_extensions import Self

from enginewright.core.files import Record
from enginewright.core.params.build import ON_CPU, ONNXRUNTIME
from enginewright.core.text import figure
from enginewright.engine.gpu import GpuConditions
from enginewright.engine.machine import Machine
from enginewright.engine.record import LayerTime


class Reference(Record):
    """The outputs of the source model, and what each metric of the task makes of them: none if not measured."""

    made_by: str
    outputs: tuple[str, ...]  # their values are in one file each, which is named by its number
    samples: int
    metrics: dict[str, float]
    by_chance: bool  # whether the first is no better than if samples got each other's answers
    doubt: str | None = None  # a sentence, if it is right far more often for images that are prepared in another way


class Errors(Record):
    """The errors of one set of outputs against another, over all samples; the worst output counts for each figure."""

    max_abs: float
    mean_abs: float
    relative: float
    cosine: float
    worst_cosine: float
    nonfinite: int


class Interval(Record):
    """The range of a figure with a confidence of 95 %, as far as the choice of samples decides it."""

    low: float
    high: float


class Result(Record):
    """One metric of the task, of PyTorch, of the graph and of the engine. `drop` is how much worse the engine is than
    PyTorch, below 0 if it is better. Its interval is paired: PyTorch and the engine answered the same samples."""

    name: str
    unit: str  # % if 0.5 is written as 50.00%, or empty
    higher_is_better: bool
    reference: float
    graph: float
    engine: float
    drop: float
    interval: Interval  # around the drop
    samples: int  # or pairs of samples, if the metric is about pairs
    needed: int | None  # to tell on which side of its threshold the drop is; None if no number would, or has none

    def written(self, value: float) -> str:
        return figure(value, self.unit)

    @property
    def is_sure(self) -> bool:
        """Tell whether the samples are enough to know the side of the threshold. No number of them helps NaN."""
        return self.needed == self.samples or isnan(self.drop)

    @property
    def drop_with_interval(self) -> str:
        return f"{self.written(self.drop)} ({self.written(self.interval.low)} to {self.written(self.interval.high)})"


class Agreement(Record):
    """The share of answers that are PyTorch's, right or wrong, and of what: such as `the pixels of 512 images`."""

    name: str
    share: float
    interval: Interval
    among: str
    samples: int
    needed: int | None  # as of a Result

    @property
    def is_sure(self) -> bool:
        return self.needed == self.samples or isnan(self.share)

    @property
    def share_with_interval(self) -> str:
        return f"{self.share:.2%} ({self.interval.low:.2%} to {self.interval.high:.2%})"


class Spot(Record):
    batch: int
    samples: int
    errors: Errors  # against PyTorch
    metric: float | None  # None if it was not measured
    drift: float  # from its own outputs over the full set


class Resized(Record):
    sizes: dict[str, int]
    errors: Errors


class Spread(Record):
    """The distribution of errors over single images, as quantiles at `shares`."""

    shares: tuple[float, ...]
    relative_error: tuple[float, ...]
    # how much of the lead of PyTorch's answer the engine keeps, below 0 if it has another
    margin_kept: tuple[float, ...]


class Validation(Record):
    precision: str
    task: str
    reference: str  # what made the reference outputs: PyTorch, or ONNX Runtime if the model is a user's ONNX file
    engine: str  # the identity of the engine that was validated
    samples: int
    kind: str = "images"  # what the samples are called
    samples_sha256: str = ""  # of their list; empty in a record of an earlier version
    results: tuple[Result, ...]  # of each metric of the task, the one that is judged first; empty if not measured
    metric: str  # the name of the first, measured or not
    lacking: str  # why metrics are not measured, if they are not
    agreement: Agreement | None  # None if answers of the task cannot be the same
    engine_against_pytorch: Errors
    graph_against_pytorch: Errors
    engine_against_graph: Errors
    spots: tuple[Spot, ...]
    resized: tuple[Resized, ...]
    loss_comes_from: str
    broken: tuple[str, ...]
    unsure: tuple[str, ...]  # a sentence for each threshold that the samples are too few to be sure of
    must_be_sure: bool  # whether these fail, too
    spread: Spread
    padding: object = None  # told by earlier versions
    doubt: str | None = None  # of the reference: that images are not prepared as its model was trained on them

    @property
    def main(self) -> Result | None:
        return self.results[0] if self.results else None

    @property
    def passed(self) -> bool:
        return not (self.broken or self.not_enough_samples)

    @property
    def not_enough_samples(self) -> tuple[str, ...]:
        """Return what fails because the samples are too few, in place of a broken threshold."""
        return self.unsure if self.must_be_sure else ()


ENGINE = "engine"  # the contender that all baselines are compared with
LAUNCHED = "engine_launched"  # the same engine without its CUDA graph: kernels are launched one by one
WARM_UP_AGREEMENT = 0.05  # two windows of a warm-up agree if they differ by at most this share
RUNS_FOR_P99 = 100  # fewer calls say nothing about the slowest in a hundred
SAME_PACE = 1.15  # two readings are the same machine pace if the slower one takes at most this many times as long


class Latency(Record):
    """The times of one contender at one batch size, in milliseconds per batch, including copies to and from a device.
    Only rounds at one machine pace count."""

    contender: str
    batch: int
    runs: int
    p50: float
    p90: float
    p99: float
    compute: float | None  # the median without the copies, by the device's own clock; None if nothing is copied
    spread: float  # the range of the middle half of the calls, as a share of the median
    outliers: float  # the share of calls that took over twice the median
    warm_up_drift: float  # how much the last two windows of the warm-up differed
    images_per_second: float


class Ratio(Record):
    """The speed of the engine as a multiple of a baseline's: the median over rounds at one pace, with its interval."""

    baseline: str
    batch: int
    rounds: int
    median: PositiveFloat
    low: PositiveFloat
    high: PositiveFloat


class MachinePace(Record):
    """The machine's speed during a race: the time of a fixed piece of work before and after each round. Only
    rounds at the best common pace count, and the others are set aside."""

    microseconds: float | None  # None if the machine never kept to one pace; then all rounds count
    rounds: int
    set_aside: int


class Throughput(Record):
    """The answers of an engine with several requests in flight; p50 and p99 are milliseconds per request."""

    batch: int
    requests: int
    runs: int  # answered requests
    images_per_second: float
    p50: float
    p99: float


class Kept(Record):
    """The samples a second of a setting, and its p99 with an interval. Times are milliseconds."""

    batch: int  # the most samples in one
    requests: int  # in flight
    delay: float  # that the first sample of a batch waits for others
    images_per_second: float
    p99: float
    low: float
    high: float

    @property
    def in_words(self) -> str:
        setting = f"batch {self.batch}, {self.requests} in flight"
        setting += f", delay {self.delay:.2f} ms" if self.delay else ""
        return f"{self.images_per_second:,.0f}, p99 {self.p99:.2f} ms ({self.low:.2f} to {self.high:.2f}): {setting}"


class Within(Record):
    """The most samples a second of which 99 of 100 are answered within so many milliseconds."""

    milliseconds: float
    back_to_back: Kept | None  # None if nothing that was measured is as fast
    at_random: Kept | None  # samples come one by one, at random times; None if no rate that was run kept the latency
    promised: float  # samples a second, which the simulation found for `at_random`, with an interval; 0 if none
    low: float
    high: float
    least: float  # the smallest p99 that was measured
    curve: tuple[tuple[float, float], ...]  # other latencies, and what the simulation found for them

    @property
    def in_words(self) -> dict[str, str]:
        none = f"none: p99 is {self.least:.2f} ms at least"
        not_kept = "none was kept" if self.promised else none
        return {
            "at random times": self.at_random.in_words if self.at_random else not_kept,
            "simulated": f"{self.promised:,.0f} ({self.low:,.0f} to {self.high:,.0f})" if self.promised else "-",
            "back to back": self.back_to_back.in_words if self.back_to_back else none,
        }


class Contention(Record):
    """The processor time that a race could not have, counted in cores."""

    cores: int  # that the race could use
    others: float  # busy in other programs
    stolen: float  # by the host of a virtual machine
    throttled: float  # by a container's quota


class PeakMemory(Record):
    """The peak memory of a process that only loads a contender and runs it, in MB; `device` is None without a GPU."""

    host: float
    device: float | None


class Isolated(Record):
    """An engine in a process that holds nothing else."""

    memory: PeakMemory
    compute: dict[int, float]  # the median milliseconds by batch size; empty on a CPU


class AtSize(Record):
    """The speed of one engine at another size of an axis of the user's, such as the length of texts."""

    axis: str
    size: int
    latencies: tuple[Latency, ...]
    ratios: tuple[Ratio, ...]


class Benchmark(Record):
    """The speed of one engine beside its baselines, and the conditions that it was measured under."""

    precision: str
    threads: int
    cuda_graph: bool
    confidence: float
    latencies: tuple[Latency, ...]
    ratios: tuple[Ratio, ...]
    pace: MachinePace
    throughput: tuple[Throughput, ...]
    contention: Contention
    peak_memory: dict[str, PeakMemory]
    isolated_compute: dict[int, float]  # milliseconds by batch size, of the engine in a process that holds nothing else
    gpu: GpuConditions | None
    pytorch: str  # the version that the baselines ran on
    sizes: tuple[AtSize, ...] = ()  # the smallest of the axis first
    within: Within | None = None  # if benchmark.within_ms asks for it


class Trace(Record):
    """The times of the layers of one engine. Their sum is no latency, because timing layers slows an engine."""

    precision: str
    machine: Machine
    batch: int
    calls: int
    layers: tuple[LayerTime, ...]

    @property
    def milliseconds(self) -> float:
        return sum(layer.milliseconds for layer in self.layers)


class Factor(NamedTuple):
    """How many times as fast one contender is as another, with an interval."""

    median: float
    low: float
    high: float


class RacedPair(Record):
    one: str
    other: str
    median: PositiveFloat
    low: PositiveFloat
    high: PositiveFloat


class EnginesRace(Record):
    """All engines beside each other at one batch size; race.json."""

    batch: int
    baseline: str
    threads: int
    confidence: float
    rounds: int
    milliseconds: dict[str, float]  # the median of each contender, with copies to a device and back
    pairs: tuple[RacedPair, ...]  # any two contenders once
    disturbed: tuple[str, ...] = ()  # what took the machine meanwhile

    def times(self, one: str, other: str) -> Factor:
        for pair in self.pairs:
            if (pair.one, pair.other) == (one, other):
                return Factor(pair.median, pair.low, pair.high)
            if (pair.one, pair.other) == (other, one):
                return Factor(1 / pair.median, 1 / pair.high, 1 / pair.low)
        return Factor(1.0, 1.0, 1.0)


class Identity(Record):
    """The facts of a machine that two runs must share."""

    runtime: str
    device_name: str
    cores: int

    @classmethod
    def of(cls, machine: Machine) -> Self:
        return cls(**machine.model_dump(include=set(cls.model_fields)))


class Measurement(Record):
    precision: str
    engine_bytes: int
    files: dict[str, str]  # the hashes of the engine's files
    executed_as_asked: float
    asked_by: str = ""  # the hash of the graph; empty in a record of an earlier version
    validation: Validation
    benchmark: Benchmark


class Measurements(Record):
    machine: Machine
    precisions: tuple[Measurement, ...]


class Outcome(str, Enum):
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NO_CHANGE = "no change"
    CHANGED = "changed"  # as another graph asked for it: neither better nor worse
    NOT_COMPARABLE = "not comparable"

    __str__ = str.__str__  # as in StrEnum, which Python 3.10 lacks


class Verdict(Record):
    """The precision to ship, and for each precision the reasons why it fails, if it does."""

    recommended: str | None
    offered: str | None = None  # if the race cannot tell which precision is the fastest,
    doubt: str = ""  # and why it cannot
    failures: dict[str, tuple[str, ...]]
    unsure: dict[str, tuple[str, ...]]  # what fails only because the samples are too few to be sure, where one must be


def baseline_title(baseline: str) -> str:
    return {ONNXRUNTIME: "ONNX Runtime", ON_CPU: "ONNX Runtime on the CPU"}.get(baseline, f"PyTorch {baseline}")

"""The records in the JSON documents of the stages benchmark and trace."""

from pathlib import Path
from statistics import median

from pydantic import PositiveFloat

from enginewright.core.files import Record
from enginewright.core.params.build import InferenceParams
from enginewright.core.params.measuring import ONNXRUNTIME
from enginewright.data.sample_set import SampleSet
from enginewright.engine.gpu.nvml import GpuConditions
from enginewright.engine.machine import Machine, Moments, require_fits
from enginewright.engine.record import LayerTime, read_engine, require_weights
from enginewright.engine.runtimes import load_runtime

ENGINE = "engine"  # the contender that all baselines are compared with
LAUNCHED = "engine_launched"  # the same engine without its CUDA graph: kernels are launched one by one
WARM_UP_AGREEMENT = 0.05  # two windows of a warm-up agree if they differ by at most this share
RUNS_FOR_P99 = 100  # fewer calls say nothing about the slowest in a hundred
SAME_PACE = 1.15  # two readings are the same machine pace if the slower one takes at most this many times as long


class Latency(Record):
    """The times of one contender at one batch size, in milliseconds per batch, including copies to and from a device.
    Only rounds at one machine pace count. `compute` is the median without the copies, by the device's own clock, or
    None if nothing is copied. `spread` is the range of the middle half of the calls, as a share of the median;
    `outliers` is the share of calls that took over twice the median. `warm_up_drift` is how much the last two windows
    of the warm-up differed: more than WARM_UP_AGREEMENT if the time was up before they agreed."""

    contender: str
    batch: int
    runs: int
    p50: float
    p90: float
    p99: float
    compute: float | None
    spread: float
    outliers: float
    warm_up_drift: float
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
    rounds at the best common pace count, and the others are set aside. `microseconds` is None if the machine never kept
    to one pace; then all rounds count."""

    microseconds: float | None
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


class Contention(Record):
    """The processor time that a race could not have, counted in cores: busy in other programs, stolen by the host of a
    virtual machine, or throttled by a container's quota. `cores` is how many cores the race could use."""

    cores: int
    others: float
    stolen: float
    throttled: float


class PeakMemory(Record):
    """The peak memory of a process that only loads a contender and runs it, in MB; `device` is None without a GPU."""

    host: float
    device: float | None


class Isolated(Record):
    """The memory of an engine in a process that holds nothing else, and all its calls there by batch size: none without
    a GPU."""

    memory: PeakMemory
    calls: dict[int, tuple[Moments, ...]]

    @property
    def compute(self) -> dict[int, float]:
        """Return the median milliseconds of the compute by batch size."""
        return {batch: 1000 * median(call.compute for call in calls) for batch, calls in self.calls.items()}


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


def baseline_title(baseline: str) -> str:
    return "ONNX Runtime" if baseline == ONNXRUNTIME else f"PyTorch {baseline}"


# Time the layers of one engine, apart from the benchmark.

CALLS = 48


def trace_engine(folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet) -> Trace:
    """Time the layers at the batch size that the engine is tuned for. There are none if the runtime gives no times."""
    record, layers = read_engine(folder), time_layers(folder, machine, inference, samples, CALLS)
    times = tuple(layers) if any(layer.milliseconds for layer in layers) else ()
    batch = record.profile.batch.opt
    return Trace(precision=record.precision, machine=machine, batch=batch, calls=CALLS, layers=times)


def time_layers(
    folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet, calls: int
) -> list[LayerTime]:
    """Return the layers with their times, which may all be 0."""
    record = read_engine(folder)
    require_fits(record.target, machine, folder)
    require_weights(record, folder)
    feeds = samples.tuned(record.profile).cycled(record.profile.batch.opt)
    return load_runtime(machine.runtime).trace(folder, record.blueprint, inference, feeds, calls)

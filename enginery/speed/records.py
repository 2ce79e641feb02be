"""The JSON document of the stage benchmark."""

from enginery.core.params.benchmark import ONNXRUNTIME
from enginery.core.record import Record
from enginery.engine.gpu.conditions import GpuConditions

ENGINE = "engine"  # the contender that is no baseline
WARM_UP_AGREEMENT = 0.05  # by what share two windows of a warm-up may differ and still agree
SAME_PACE = 1.15  # how much worse a reading may be and still count as the same pace
LAUNCHED = "engine_launched"  # the same where it is replayed as a CUDA graph, but launched kernel by kernel


class Latency(Record):
    """One contender at one batch size, in milliseconds per batch, copies to and from a device included.

    Of the rounds at one pace. `compute` is the median without the copies, by the device's own clock; None where there
    is nothing to copy. `spread` is what the middle half of the calls covers, as a share of the median; `outliers` the
    share that took over twice it; `unrest` by how much the last two windows of its warm-up differed, which is more
    than they may where the time was up before they agreed.
    """

    contender: str
    batch: int
    runs: int
    p50: float
    p90: float
    p99: float
    compute: float | None
    spread: float
    outliers: float
    unrest: float
    images_per_second: float


class Ratio(Record):
    """How many times faster the engine is than a baseline: median over rounds at one pace, with its interval."""

    baseline: str
    batch: int
    rounds: int
    median: float
    low: float
    high: float


class Pace(Record):
    """How fast the machine was, by a fixed piece of work between the rounds; rounds at another pace are set aside.

    `microseconds` is None if it never kept to one pace; then all rounds count.
    """

    microseconds: float | None
    rounds: int
    set_aside: int


class Throughput(Record):
    """The engine with several requests in flight, each asking again once it is answered; milliseconds per request."""

    batch: int
    requests: int
    runs: int  # requests that were answered
    images_per_second: float
    p50: float
    p99: float


class Contention(Record):
    """In cores, of those that the race might be put on: what others kept busy, what the host or a quota withheld."""

    cores: int
    others: float
    stolen: float
    throttled: float


class PeakMemory(Record):
    """Of a process that only loads a contender and runs it, in MB. `device` is None without a GPU."""

    host: float
    device: float | None


class Isolated(Record):
    """An engine in a process of its own. By batch size the milliseconds of its compute; none without a GPU."""

    memory: PeakMemory
    compute: dict[int, float]


class Benchmark(Record):
    precision: str
    threads: int
    cuda_graph: bool
    confidence: float
    latencies: tuple[Latency, ...]
    ratios: tuple[Ratio, ...]
    pace: Pace
    throughput: tuple[Throughput, ...]
    contention: Contention
    peak_memory: dict[str, PeakMemory]
    isolated_compute: dict[int, float]  # milliseconds by batch size, of the engine in a process of its own
    gpu: GpuConditions | None
    pytorch: str  # the version that baselines ran on


def baseline_title(baseline: str) -> str:
    return "ONNX Runtime" if baseline == ONNXRUNTIME else f"PyTorch {baseline}"

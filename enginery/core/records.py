"""The JSON documents that stages hand on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from enginery.core.errors import EngineryError
from enginery.core.files import new_file, sha256_of
from enginery.core.params import NO_SCORES, BuildParams, Preprocessing, Profile, Rest


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def write(self, path: Path) -> None:
        with new_file(path) as temporary:
            temporary.write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            return cls.parse(path.read_bytes(), str(path))
        except FileNotFoundError:
            raise EngineryError(f"{path} is missing: run `dvc repro` to make it") from None
        except EngineryError as error:
            raise EngineryError(f"{error}: `dvc repro` makes it again") from None

    @classmethod
    def parse(cls, content: bytes, origin: str) -> Self:
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            wrong = f"{place}: {first['msg']}" if place else first["msg"]
            raise EngineryError(f"{origin} is damaged or of another version of Enginery ({wrong})") from None


class Machine(Record):
    """What a timing is worth: stable facts only, no clocks and no free memory."""

    runtime: str
    runtime_version: str
    device: str
    device_name: str
    capability: str
    driver: str
    cuda: str
    cores: int
    operating_system: str


class Target(Record):
    """What an engine is compiled for. None stands for any: a portable engine is bound to less than its builder."""

    runtime: str
    runtime_version: str
    or_newer: bool
    device: str
    device_name: str | None
    capabilities: tuple[str, ...] = Field(min_length=1)
    driver: str | None
    cuda: str | None
    cores: int | None
    operating_system: str


class Dialect(Record):
    """What the runtime wants of a graph that convert would else not know; the same for many machines."""

    rest: Rest


class Tools(Record):
    """The libraries that shape a graph: a new version of one makes new files."""

    versions: dict[str, str]


class Code(Record):
    """The files that the user's own model is made of, and those that it is told to read; none of torchvision's."""

    files: dict[str, str]


class Sample(Record):
    name: str
    sha256: str
    label: int | None


class Manifest(Record):
    """One split of the samples: which, in which order, for which inputs of the model, prepared how.

    `class_names` is empty if not known. `preprocessing` is None for arrays, which are fed as they came.
    """

    source: str
    inputs: tuple[str, ...]
    preprocessing: Preprocessing | None
    class_names: tuple[str, ...]
    samples: tuple[Sample, ...]

    @property
    def is_labeled(self) -> bool:
        return all(sample.label is not None for sample in self.samples)


class Weights(Record):
    """The model, and where its weights come from; `classes` are those that it was made for, None if nothing says so."""

    model: str
    arguments: dict[str, Any]
    source: str
    classes: int | None
    sha256: str


class GraphCheck(Record):
    """How far a graph's outputs lie from those it must reproduce, on real samples."""

    samples: int
    max_abs_error: float
    relative_error: float


class Export(Record):
    opset: int
    nodes: dict[str, int]
    against_pytorch: GraphCheck


class Simplification(Record):
    nodes_before: dict[str, int]
    nodes_after: dict[str, int]
    bytes_before: int
    bytes_after: int
    against_exported: GraphCheck


PYTORCH = "PyTorch"  # who answers in a Reference, but for a model that came as an ONNX file


class Reference(Record):
    """What the model as it came answers. `accuracy` is None here and below where there are no labels or no scores."""

    made_by: str
    outputs: tuple[str, ...]  # each in a file of its own, by its number
    samples: int
    accuracy: float | None


class Calibration(Record):
    """Where the ranges in calibration.cache come from. The first four are None when the file is from elsewhere."""

    model_sha256: str | None
    samples_sha256: str | None
    preprocessing_sha256: str | None
    samples: int | None
    source: str
    method: str
    bins: int
    percentile: float
    tools: dict[str, str]
    cache_sha256: str
    amax: dict[str, float]


class Sketch(Record):
    """The magnitudes of one activation, coarsely: counts in equal bins from 0, and the share beyond its threshold."""

    width: float
    counts: tuple[int, ...]
    largest: float
    clipped: float


class Histograms(Record):
    """What calibration saw, by tensor; nothing if its ranges were given."""

    tensors: dict[str, Sketch]


class Conversion(Record):
    precision: str
    opset: int
    nodes: dict[str, int]


class TensorSpec(Record):
    """A tensor of a graph and its engine; an axis that varies has its name for a size: batch, height or width.

    An output's may follow from those, and is then called as the graph does, such as height//8, or ? where that says
    nothing: how large it is, only a run tells.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.shape)

    def fits(self, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
        """Whether it may have this shape; an axis that is not among the sizes may be as large as it likes."""
        wanted = [sizes.get(size, size) if isinstance(size, str) else size for size in self.shape]
        return len(shape) == len(wanted) and all(
            found == size or (isinstance(size, str) and found >= 0) for found, size in zip(shape, wanted, strict=True)
        )


class Interface(Record):
    """What a graph takes and returns: read from it once, and the engine's from then on."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """The axes that vary, at these shapes of the inputs."""
        return {
            axis: size
            for spec in self.inputs
            for axis, size in zip(spec.shape, shapes[spec.name], strict=True)
            if isinstance(axis, str)
        }


@dataclass(frozen=True)
class Blueprint:
    """What a runtime makes an engine to be, and has to be told again to open it."""

    interface: Interface
    build: BuildParams


class Layer(Record):
    """One operation as the runtime executes it, after fusion."""

    name: str
    kind: str
    precision: str
    computes: bool


class EngineRecord(Record):
    """engine.json: all that is needed to load an engine safely and to feed it, without torch or the repository."""

    precision: str
    target: Target
    build: BuildParams
    files: dict[str, str]
    bytes: int
    onnx_sha256: str
    onnx_bytes: int
    interface: Interface
    layers: tuple[Layer, ...]
    build_seconds: float
    preprocessing: Preprocessing | None
    class_names: tuple[str, ...]
    scores: str | None = None  # model.scores, as params.yaml has it; early records do not tell

    @property
    def blueprint(self) -> Blueprint:
        return Blueprint(self.interface, self.build)

    @property
    def profile(self) -> Profile:
        return self.build.profile

    @property
    def names_classes(self) -> bool:
        return bool(self.class_names) and self.scores != NO_SCORES

    @property
    def identity(self) -> str:
        """Another one after each build: it covers the hashes of the files, and all else that is written here."""
        return sha256_of(self.model_dump(mode="json"))

    @property
    def executed(self) -> dict[str, int]:
        """How many of the layers that carry the arithmetic run in which precision; none if that is not known."""
        precisions = [layer.precision for layer in self.layers if layer.computes]
        return {name: precisions.count(name) for name in sorted(set(precisions), key=precisions.count, reverse=True)}

    @property
    def ran_as(self) -> str | None:
        """Another precision than its own, if it is known that none of its arithmetic ran in that."""
        return None if self.share_as_asked else next(iter(self.executed), None)

    @property
    def as_asked(self) -> tuple[str, ...]:
        """What an engine of this precision may run in: TF32 is how a GPU multiplies float32, if it is let."""
        return ("fp32", "tf32") if self.precision == "fp32" and self.build.tf32 else (self.precision,)

    @property
    def share_as_asked(self) -> float:
        """The share of compute layers that run in the precision the engine is named after."""
        return sum(self.executed.get(name, 0) for name in self.as_asked) / max(1, sum(self.executed.values()))


class Errors(Record):
    """How far `got` lies from `wanted`, over all samples; of several outputs, the worst of each figure.

    `top1_agreement` is None where no output is one of classes.
    """

    max_abs: float
    mean_abs: float
    relative: float
    cosine: float
    worst_cosine: float
    top1_agreement: float | None
    nonfinite: int


class Spot(Record):
    """The engine at one batch size: against PyTorch, and as `drift` against its own logits on the full set."""

    batch: int
    samples: int
    errors: Errors
    accuracy: float | None
    drift: float


class Resized(Record):
    """The engine against its graph at another image size."""

    sizes: dict[str, int]
    errors: Errors


class Spread(Record):
    """Single images, in order, at these shares of them: most differ little, and what matters is how the worst do.

    `margin_kept` is the engine's lead of PyTorch's answer over the next best, as a share of PyTorch's own: 1 is
    unchanged, below 0 is another answer. Empty where there is only one class.
    """

    shares: tuple[float, ...]
    relative_error: tuple[float, ...]
    margin_kept: tuple[float, ...]


class Validation(Record):
    precision: str
    reference: str = PYTORCH  # or ONNX Runtime, which runs the file that the model came as
    engine: str | None = None  # the identity of the engine that was judged; early records do not tell
    samples: int
    reference_accuracy: float | None
    graph_accuracy: float | None
    engine_accuracy: float | None
    accuracy_drop: float | None
    engine_against_pytorch: Errors
    graph_against_pytorch: Errors
    engine_against_graph: Errors
    spots: tuple[Spot, ...]
    resized: tuple[Resized, ...]
    loss_comes_from: str
    broken: tuple[str, ...]
    spread: Spread | None = None  # reports from before it was recorded can still be compared

    @property
    def passed(self) -> bool:
        return not self.broken


class LayerTime(Layer):
    """The median over calls; 0 where the runtime has nothing to do for the layer."""

    milliseconds: float


class Trace(Record):
    """Where the time of one engine goes. Timing layers slows an engine: the sum is no latency."""

    precision: str
    batch: int
    calls: int
    layers: tuple[LayerTime, ...]

    @property
    def milliseconds(self) -> float:
        return sum(layer.milliseconds for layer in self.layers)


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
    unrest: float = 0.0  # early records do not tell
    images_per_second: float


class Ratio(Record):
    """How many times faster the engine is than a baseline: median over rounds at one pace, with its interval."""

    baseline: str
    batch: int
    rounds: int
    median: float
    low: float
    high: float


class Verdict(Record):
    """What to ship, and for each precision that fails why."""

    recommended: str | None
    failures: dict[str, tuple[str, ...]]


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
    runs: int = 0  # requests that were answered; early records do not tell
    images_per_second: float
    p50: float
    p99: float


class Contention(Record):
    """In cores, of those that the race might be put on: what others kept busy, what the host or a quota withheld."""

    cores: int
    others: float
    stolen: float
    throttled: float = 0.0  # early records do not tell


class GpuConditions(Record):
    """The state of the GPU while it was timed, over all samples: clocks in MHz, watts, degrees Celsius."""

    samples: int
    clock_low: int
    clock_median: int
    clock_high: int
    memory_clock: int
    power_median: float
    power_high: float
    temperature_high: int
    throttled: dict[str, float]


class PeakMemory(Record):
    """Of a process that only loads a contender and runs it, in MB. `device` is None without a GPU."""

    host: float
    device: float | None


class Alone(Record):
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
    alone: dict[int, float] = {}  # the engine's compute in a process of its own; early reports do not tell
    gpu: GpuConditions | None
    pytorch: str | None = None  # the version that baselines ran on; early reports do not tell


class Measured(Record):
    """What one precision was found to be, for a later run to be held against."""

    precision: str
    engine_bytes: int
    files: dict[str, str] = {}  # of the engine, and their hashes; early records do not tell
    executed_as_asked: float
    validation: Validation
    benchmark: Benchmark


class Measurements(Record):
    machine: Machine
    precisions: tuple[Measured, ...]

"""The sections `build`, `inference`, `validation`, `benchmark`, `cluster` and `timeouts`."""

from collections.abc import Iterable, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator
from typing_extensions import Self

from enginewright.core.params.samples import Layout
from enginewright.core.params.section import Section

HardwareCompatibility = Literal["none", "same_compute_capability", "ampere_plus"]
# YAML reads 8.6 as a number.
ComputeCapability = Annotated[Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"], BeforeValidator(str)]
TilingLevel = Literal["none", "fast", "moderate", "full"]
WeightsPlace = Literal["inside", "stripped"]
Bound = Literal["min", "opt", "max"]
ENDS: tuple[Bound, ...] = ("min", "max")


class Range(Section):
    """The sizes of one axis that an engine accepts, and the size that it is tuned for."""

    min: int = Field(ge=1)
    """the smallest size"""
    opt: int = Field(ge=1)
    """the size tuned for"""
    max: int = Field(ge=1, le=65536)
    """the largest; a size is fixed if all three are alike"""

    @property
    def fixed(self) -> bool:
        return self.min == self.max

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"needs min <= opt <= max, got {self.min}, {self.opt}, {self.max}")
        return self

    def __contains__(self, size: int) -> bool:
        return self.min <= size <= self.max

    def nearest(self, size: int) -> int:
        return min(max(size, self.min), self.max)

    def __str__(self) -> str:
        return str(self.min) if self.fixed else f"{self.min} to {self.max}"


class Axis(Range):
    """The sizes of an axis that the user names, and where it is: its number in each input that has it, and its place
    among the values of inputs that hold sizes."""

    inputs: dict[str, Annotated[int, Field(ge=1)]] | None = Field(default=None, min_length=1)
    """its number in each input that has it; null: 1 in each"""
    values: dict[str, Annotated[int, Field(ge=0)]] = Field(default={})
    """its place among the values of inputs that hold sizes"""

    def numbers(self, inputs: Iterable[str]) -> dict[str, int]:
        """Return its number by input. If the user says nothing, it is the first after the batch in each input."""
        return self.inputs or ({} if self.values else dict.fromkeys(inputs, 1))


class Profile(Section):
    """The sizes that may vary from call to call: the batch, the height and width of images, and axes of the user's."""

    batch: Range = Range(min=1, opt=8, max=16)
    """how many samples a call takes"""
    height: Range | None = None
    """of images, such as {min: 64, opt: 64, max: 128}; null: as samples.preprocessing crops them"""
    width: Range | None = None
    """likewise"""
    axes: dict[str, Axis] = Field(default={})
    """more axes, by your own names: {length: {min: 8, opt: 64, max: 256}} is the first after the batch in each input;
    with inputs: {ids: 1, mask: 2}, those of these inputs"""

    @property
    def ranges(self) -> dict[str, Range]:
        found = {"batch": self.batch, "height": self.height, "width": self.width, **self.axes}
        return {axis: sizes for axis, sizes in found.items() if sizes}

    @property
    def resizes(self) -> bool:
        """Tell whether more than the batch varies."""
        return len(self.ranges) > 1

    @field_validator("axes")
    @classmethod
    def _have_usable_names(cls, axes: dict[str, Axis]) -> dict[str, Axis]:
        for name in axes:
            if name in ("batch", "height", "width"):
                raise ValueError(f"{name} has a line of its own, build.profile.{name}: give its range there")
            if not name.isidentifier() or iskeyword(name):  # PyTorch's exporter calculates with them
                raise ValueError(f"'{name}' must be made of letters, digits and _")
        return axes

    def places(self, name: str) -> dict[int, str]:
        """Return the axes whose sizes the values of an input are, by their places there."""
        return {axis.values[name]: each for each, axis in self.axes.items() if name in axis.values}

    def at(self, bound: Bound) -> dict[str, int]:
        """Return the size of each axis at one bound."""
        return {axis: getattr(sizes, bound) for axis, sizes in self.ranges.items()}

    def narrowed(self, ranges: Mapping[str, Range]) -> "Profile":
        """Return the profile with other ranges of some of its axes."""
        axes = {name: axis.model_copy(update=dict(ranges.get(name, axis))) for name, axis in self.axes.items()}
        others = {name: sizes for name, sizes in ranges.items() if name not in axes}
        return self.model_copy(update={**others, "axes": axes})

    def __str__(self) -> str:
        return ", ".join(f"{axis} {sizes}" for axis, sizes in self.ranges.items())


class TuneParams(Section):
    seconds: float = Field(ge=0)
    """how long to build and race variants of each engine; 0: only repeat what tuned/ has"""


class TensorRTParams(Section):
    workspace_mb: int | None = Field(default=None, ge=1, le=1 << 20)
    """the most scratch memory that a kernel may take; null: no limit"""
    optimization_level: int = Field(default=3, ge=0, le=5)
    """from 0, which builds fastest, to 5, which searches longest"""
    avg_timing_iterations: int = Field(default=8, ge=1, le=1000)
    """how often a kernel is timed before one is chosen; TensorRT's own default is 1"""
    tiling_optimization_level: TilingLevel = "none"
    """fit layers into the GPU's cache; builds longer"""
    max_aux_streams: int | None = Field(default=None, ge=0, le=64)
    """how many more streams may run layers side by side; 0: none; null: as TensorRT decides"""
    build_route: str | None = None
    """choices of the compiler of 11.1 and later, as `trtexec --setBuildRoute` takes them; null: its own"""
    timing_cache: bool = True
    """keep kernel timings for later builds, by GPU, driver and TensorRT, in the user's cache"""
    hardware_compatibility: HardwareCompatibility = "none"
    """ampere_plus: runs on more GPUs, slower"""
    version_compatible: bool = False
    """whether later versions can run it: of the same major TensorRT, or 11 that of 10"""
    compute_capabilities: tuple[ComputeCapability, ...] = Field(default=("8.6", "8.9", "12.0"), min_length=1)
    """the GPUs that engines of TensorRT for RTX are for: 30, 40, 50 series"""
    plugins: tuple[str, ...] = ()
    """libraries of your plugins, data/plugins/FILE.so, in the order in which they are loaded"""
    weights: WeightsPlace = "inside"
    """stripped: an engine without weights, which takes them from its ONNX file when it is opened"""
    refit: bool = False
    """true: `enginewright refit` can put other weights into the engine, which may then be slower"""
    streaming: bool = False
    """true: some weights may stay in the host's memory, for models larger than the GPU's"""
    tune: TuneParams | None = None
    """{seconds: 600}: build and race variants of each engine for so long, and keep what is faster here; null: do not"""

    @property
    def is_stripped(self) -> bool:
        """Tell whether a plan takes its weights from the ONNX file, whenever it is opened."""
        return self.weights == "stripped"

    @property
    def plugin_names(self) -> list[str]:
        """Return the names that the plugin libraries have in the folder of an engine."""
        return [Path(path).name for path in self.plugins]


class BuildParams(Section):
    profile: Profile = Profile()
    """the sizes that an engine accepts"""
    profiles: tuple[dict[str, Range], ...] = ()  # by axis; an axis without an entry is as in `profile`
    """parts of profile that TensorRT also tunes kernels for, such as {batch: {min: 1, opt: 1, max: 1}}; each call takes
    the one that contains its sizes and whose opt is nearest"""
    pixels: Layout | None = None
    """of images: nchw or nhwc: engines take bytes in this layout, a quarter of the floats, and normalize them as
    samples.preprocessing says; null: floats, normalized before"""
    tf32: bool = True
    """on a GPU: multiply float32 with 11 bits of mantissa, several times as fast; also for PyTorch"""
    tensorrt: TensorRTParams = TensorRTParams()
    """options that only TensorRT has"""

    @property
    def all_profiles(self) -> tuple[Profile, ...]:
        """Return what an engine is tuned for: first all sizes that it accepts, then the user's parts of these."""
        return self.profile, *(self.profile.narrowed(ranges) for ranges in self.profiles)

    @property
    def tuned_for_largest_batch(self) -> "BuildParams":
        batch = self.profile.batch
        largest = self.profile.narrowed({"batch": Range(min=batch.min, opt=batch.max, max=batch.max)})
        return self.model_copy(update={"profile": largest})

    def at_level(self, level: int | None) -> "BuildParams":
        """Return the same at another optimization level of TensorRT, if one is given."""
        return self if level is None else self.with_option("optimization_level", level)

    def with_option(self, name: str, value: str | int | None) -> "BuildParams":
        """Return the same with another value of one of TensorRT's options."""
        return self.model_copy(update={"tensorrt": self.tensorrt.model_copy(update={name: value})})


Words = Literal["auto", "all"]
WeightsOnGPU = Words | int  # a number is of megabytes


class InferenceParams(Section):
    threads: int = Field(default=0, ge=0)
    """CPU threads for each contender; 0: one per core that may be used"""
    cuda_graph: bool = True
    """on a GPU: capture the work of each shape once, then launch it as one"""
    weights_on_gpu_mb: WeightsOnGPU = "auto"
    """of an engine with build.tensorrt.streaming: how many megabytes of its weights stay on the GPU: a number, all, or
    auto, which is what its free memory holds"""

    @field_validator("weights_on_gpu_mb", mode="before")
    @classmethod
    def _is_a_word_or_a_number(cls, given: Any) -> Any:
        if given in get_args(Words) or (type(given) is int and given >= 0):
            return given
        raise ValueError(f"{given} is none of {', '.join(get_args(Words))}, or a number of megabytes")

    def on(self, cores: int) -> Self:
        """Return a copy in which 0 threads have become one for each core."""
        return self.model_copy(update={"threads": self.threads or cores})


ONNXRUNTIME, ON_CPU, EAGER, CUDA_GRAPH = "onnxruntime", "onnxruntime_cpu", "eager", "cuda_graph"
TORCH_TENSORRT = "torch_tensorrt"
LAUNCHES = (EAGER, "compile", "max_autotune", CUDA_GRAPH, TORCH_TENSORRT)
NUMBER_FORMATS = ("fp16", "bf16")
LAYOUTS = ("channels_last",)


def _possible_baseline(name: str) -> str:
    """Refuse all but ONNX Runtime and words joined by +: at most one for launching, layout and number format each."""
    words, kinds = name.split("+"), (LAUNCHES, NUMBER_FORMATS, LAYOUTS)
    each_known = all(any(word in kind for kind in kinds) for word in words)
    if name in (ONNXRUNTIME, ON_CPU) or (
        each_known and all(sum(word in kind for word in words) <= 1 for kind in kinds)
    ):
        return name
    raise ValueError(
        f"'{name}' is no baseline: write {ONNXRUNTIME} or {ON_CPU}, or join with + at most one of "
        f"{', '.join(LAUNCHES)}, one of {', '.join(NUMBER_FORMATS)}, and {', '.join(LAYOUTS)}"
    )


Baseline = Annotated[str, AfterValidator(_possible_baseline)]


class BenchmarkParams(Section):
    batches: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 4, 8, 16), min_length=1)
    """within build.profile"""
    seconds: float = Field(default=1.5, gt=0)
    """per contender and batch size; up to twice as long while others slow the machine down, and long enough for six
    rounds where calls are slow"""
    baselines: tuple[Baseline, ...] = Field(default=(EAGER,), min_length=1)
    """PyTorch as people use it: eager, compile, max_autotune or cuda_graph (GPU), each also in channels_last (its
    faster memory layout), fp16 or bf16, such as eager+channels_last+fp16; torch_tensorrt (GPU), which is torch.compile
    with TensorRT; or onnxruntime, which runs the float32 graph, also onnxruntime_cpu beside an engine on a GPU"""
    requests: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(default=(1, 2), min_length=1)
    """throughput: how many requests are in flight at once"""
    within_ms: float | None = Field(default=None, gt=0)
    """find what serves the most samples a second while 99 of 100 requests are answered within so many milliseconds;
    null: do not"""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """of the intervals around ratios"""
    seed: int = Field(default=0, ge=0)
    """of the order of contenders and of the bootstrap"""


class ValidationParams(Section):
    spot_samples: int = Field(default=64, ge=1)
    """images that are run again at batch 1, at the largest batch and at an odd one between"""
    must_be_sure: bool = False
    """true: fail, too, where images are too few to tell, which is neither kept nor broken"""
    must_know: bool = True
    """false: pass, too, where PyTorch itself is no better than if samples got each other's answers"""


class ClusterParams(Section):
    """Where stages spread their work. No stage lists it in dvc.yaml: results differ by no more than rounding."""

    address: str | None = None
    """HOST:PORT of the head of a Ray cluster, or auto; null: this machine alone"""
    resource: str | None = None
    """use only the nodes that have this resource of Ray's; null: all"""
    cores: int = Field(default=1, ge=1)
    """of each task: more where a model takes much memory; sums may then differ in their last bits"""


YEAR = 31_536_000.0  # of seconds; the kernel's clocks do not count without end
Seconds = Annotated[float, Field(gt=0, le=YEAR)] | None
TimedStage = Literal[
    "samples", "weights", "export", "simplify", "reference", "calibrate", "rescue", "search", "mix", "convert", "build",
    "validate", "benchmark", "race", "trace", "report",
]  # fmt: skip

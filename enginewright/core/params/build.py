from collections.abc import Iterable, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from enginewright.core.params.section import Section

HardwareCompatibility = Literal["none", "same_compute_capability", "ampere_plus"]
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]
TilingLevel = Literal["none", "fast", "moderate", "full"]
WeightsPlace = Literal["inside", "stripped"]
Bound = Literal["min", "opt", "max"]
ENDS: tuple[Bound, ...] = ("min", "max")


class Range(Section):
    """The sizes of one axis that an engine accepts, and the size that it is tuned for."""

    min: int = Field(ge=1)
    opt: int = Field(ge=1)
    max: int = Field(ge=1, le=65536)

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
    values: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)

    def numbers(self, inputs: Iterable[str]) -> dict[str, int]:
        """Return its number by input. If the user says nothing, it is the first after the batch in each input."""
        return self.inputs or ({} if self.values else dict.fromkeys(inputs, 1))


class Profile(Section, place="build.profile"):
    """The sizes that may vary from call to call: the batch, the height and width of images, and axes of the user's."""

    batch: Range
    height: Range | None = None
    width: Range | None = None
    axes: dict[str, Axis] = Field(default_factory=dict)

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


class TensorRTParams(Section):
    workspace_mb: int | None = Field(ge=1, le=1 << 20)
    optimization_level: int = Field(ge=0, le=5)
    avg_timing_iterations: int = Field(ge=1, le=1000)
    tiling_optimization_level: TilingLevel
    max_aux_streams: int | None = Field(ge=0, le=64)
    timing_cache: bool
    hardware_compatibility: HardwareCompatibility
    version_compatible: bool
    compute_capabilities: tuple[ComputeCapability, ...] = Field(min_length=1)
    plugins: tuple[str, ...]
    weights: WeightsPlace = "inside"
    refit: bool = False
    streaming: bool = False

    @property
    def is_stripped(self) -> bool:
        """Tell whether a plan takes its weights from the ONNX file, whenever it is opened."""
        return self.weights == "stripped"

    @property
    def plugin_names(self) -> list[str]:
        """Return the names that the plugin libraries have in the folder of an engine."""
        return [Path(path).name for path in self.plugins]

    @field_validator("compute_capabilities", mode="before")
    @classmethod
    def _allow_missing_quotes(cls, listed: Any) -> Any:
        """Take numbers as text, because YAML reads 8.6 as a number."""
        if not isinstance(listed, list):
            return listed
        return [str(item) if isinstance(item, float) else item for item in listed]


class BuildParams(Section, place="build"):
    profile: Profile
    profiles: tuple[dict[str, Range], ...] = ()  # by axis; an axis without an entry is as in `profile`
    tf32: bool
    tensorrt: TensorRTParams

    @property
    def all_profiles(self) -> tuple[Profile, ...]:
        """Return what an engine is tuned for: first all sizes that it accepts, then the user's parts of these."""
        return self.profile, *(self.profile.narrowed(ranges) for ranges in self.profiles)

    @property
    def with_weights(self) -> "BuildParams":
        """Return the same for a plan that keeps its weights."""
        return self.model_copy(update={"tensorrt": self.tensorrt.model_copy(update={"weights": "inside"})})


Words = Literal["auto", "all"]
WeightsOnGPU = Words | int  # a number is of megabytes


class InferenceParams(Section, place="inference"):
    threads: int = Field(ge=0)
    cuda_graph: bool
    weights_on_gpu_mb: WeightsOnGPU = "auto"
    share_scratch: bool = False

    @field_validator("weights_on_gpu_mb", mode="before")
    @classmethod
    def _is_a_word_or_a_number(cls, given: Any) -> Any:
        if given in get_args(Words) or (type(given) is int and given >= 0):
            return given
        raise ValueError(f"{given} is none of {', '.join(get_args(Words))}, or a number of megabytes")

    def on(self, cores: int) -> Self:
        """Return a copy in which 0 threads have become one for each core."""
        return self.model_copy(update={"threads": self.threads or cores})

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from enginery.core.params.section import Section

HardwareCompatibility = Literal["none", "same_compute_capability", "ampere_plus"]
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]
TilingLevel = Literal["none", "fast", "moderate", "full"]
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


class Profile(Section, place="build.profile"):
    """The sizes that may vary from call to call: the batch, and of images height and width if given as ranges."""

    batch: Range
    height: Range | None = None
    width: Range | None = None

    @property
    def ranges(self) -> dict[str, Range]:
        found = {"batch": self.batch, "height": self.height, "width": self.width}
        return {axis: sizes for axis, sizes in found.items() if sizes}

    @property
    def resizes(self) -> bool:
        return bool(self.height or self.width)

    def at(self, bound: Bound) -> dict[str, int]:
        """Return the size of each axis at one bound."""
        return {axis: getattr(sizes, bound) for axis, sizes in self.ranges.items()}

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
    tf32: bool
    tensorrt: TensorRTParams

"""params.yaml as frozen, validated values. An unknown or impossible entry is an error that names it."""

import difflib
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from enginery.core.errors import EngineryError

PARAMS_FILE = Path("params.yaml")
ONNXRUNTIME = "onnxruntime"
LAUNCHES = ("eager", "compile", "max_autotune", "cuda_graph")
NUMBERS = ("fp16", "bf16")
LAYOUTS = ("channels_last",)


def _possible_baseline(name: str) -> str:
    """`onnxruntime`, or words joined by +: how PyTorch launches, its memory layout, its numbers; at most one each."""
    words = name.split("+")
    kinds = (LAUNCHES, NUMBERS, LAYOUTS)
    if name != ONNXRUNTIME:
        unknown = [word for word in words if not any(word in kind for kind in kinds)]
        if unknown or any(sum(word in kind for word in words) > 1 for kind in kinds):
            raise ValueError(
                f"'{name}' is no baseline: write {ONNXRUNTIME}, or join with + at most one of {', '.join(LAUNCHES)}, "
                f"one of {', '.join(NUMBERS)}, and {', '.join(LAYOUTS)}"
            )
    return name


RuntimeName = Literal["openvino", "onnxruntime", "tensorrt", "tensorrt_rtx"]
PrecisionName = Literal["fp32", "fp16", "bf16", "int8", "fp8"]
Method = Literal["max", "percentile", "entropy", "mse"]
Baseline = Annotated[str, AfterValidator(_possible_baseline)]
Rest = Literal["fp32", "fp16"]
HardwareCompatibility = Literal["none", "same_compute_capability", "ampere_plus"]
ComputeCapability = Literal["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]
Share = Annotated[float, Field(ge=0, le=1)]
Triple = tuple[float, float, float]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Preprocessing(Section):
    resize: int = Field(ge=1)
    crop: int = Field(ge=1)
    interpolation: Literal["nearest", "bilinear", "bicubic"]
    mean: Triple
    std: Triple

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.crop > self.resize:
            raise ValueError(f"crop {self.crop} is larger than resize {self.resize}")
        if min(self.std) <= 0:
            raise ValueError("every std must be above 0")
        return self


class SamplesParams(Section):
    source: str
    seed: int = Field(ge=0)
    validation: int = Field(ge=1)
    training: int = Field(ge=0)
    calibration: int = Field(ge=1)
    preprocessing: Preprocessing


class ModelParams(Section):
    name: str


class TrainingParams(Section):
    size: int = Field(ge=1)
    epochs: int = Field(ge=0)
    batch: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    seed: int = Field(ge=0)


class WeightsParams(Section):
    source: str
    training: TrainingParams


class ExportParams(Section):
    opset: int = Field(ge=18, le=24)


class CalibrationParams(Section):
    method: Method
    percentile: float = Field(gt=50, le=100)
    bins: int = Field(ge=2048, le=65536)
    batch: int = Field(ge=1)
    file: str | None


class Keep(Section):
    """What stays in high precision: operator types, node names (regular expressions); and in which, if quantized."""

    op_types: tuple[str, ...]
    nodes: tuple[str, ...]
    rest: Literal["auto"] | Rest = "fp32"

    @model_validator(mode="after")
    def _is_readable(self) -> Self:
        for pattern in self.nodes:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"nodes: '{pattern}' is not a regular expression: {error}") from None
        return self


class Thresholds(Section):
    cosine: float = Field(ge=-1, le=1)
    relative_error: float = Field(gt=0)
    top1_agreement: Share
    accuracy_drop: float = Field(ge=-1, le=1)


class MustPay(Section):
    """Over which precision one must be how many times as fast, at the batch size that engines are tuned for."""

    over: PrecisionName
    times: float = Field(gt=0)


class PrecisionParams(Section):
    made_from: Literal["simplified", "calibrated"] = Field(alias="from")
    keep: Keep
    thresholds: Thresholds
    must_pay: MustPay | None = None


class Profile(Section):
    """The batch sizes that an engine accepts, and the one it is tuned for."""

    min: int = Field(ge=1)
    opt: int = Field(ge=1)
    max: int = Field(ge=1, le=65536)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"needs min <= opt <= max, got {self.min}, {self.opt}, {self.max}")
        return self


class TensorRTParams(Section):
    """What TensorRT alone can be told."""

    workspace_mb: int | None = Field(ge=1, le=1 << 20)
    optimization_level: int = Field(ge=0, le=5)
    timing_cache: bool
    hardware_compatibility: HardwareCompatibility
    version_compatible: bool
    compute_capabilities: tuple[ComputeCapability, ...] = Field(min_length=1)

    @field_validator("compute_capabilities", mode="before")
    @classmethod
    def _may_lack_quotes(cls, listed: Any) -> Any:
        """YAML reads 8.6 as a number."""
        return (
            [str(item) if isinstance(item, float) else item for item in listed] if isinstance(listed, list) else listed
        )


class BuildParams(Section):
    profile: Profile
    tf32: bool
    tensorrt: TensorRTParams


class InferenceParams(Section):
    """How a loaded engine runs, wherever it is run."""

    threads: int = Field(ge=0)
    cuda_graph: bool


class ValidationParams(Section):
    spot_samples: int = Field(ge=1)


class BenchmarkParams(Section):
    batches: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    seconds: float = Field(gt=0)
    baselines: tuple[Baseline, ...] = Field(min_length=1)
    requests: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(min_length=1)
    confidence: float = Field(gt=0.5, lt=1)
    seed: int = Field(ge=0)


class Params(Section):
    runtime: Literal["auto", RuntimeName]
    samples: SamplesParams
    model: ModelParams
    weights: WeightsParams
    export: ExportParams
    calibration: CalibrationParams
    precisions: dict[PrecisionName, PrecisionParams] = Field(min_length=1)
    build: BuildParams
    inference: InferenceParams
    validation: ValidationParams
    benchmark: BenchmarkParams

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        for name, precision in self.precisions.items():
            needed = "calibrated" if name in ("int8", "fp8") else "simplified"
            if precision.made_from != needed:
                raise ValueError(f"precisions.{name}.from: {name} is made from '{needed}', not '{precision.made_from}'")
            over = precision.must_pay and precision.must_pay.over
            if over and (over == name or over not in self.precisions):
                raise ValueError(f"precisions.{name}.must_pay.over: {over} is not another precision that is made")
            if name == "fp32" and (precision.keep.op_types or precision.keep.nodes):
                raise ValueError("precisions.fp32.keep: fp32 is in high precision throughout, there is nothing to keep")
            if needed == "simplified" and precision.keep.rest != "fp32":
                raise ValueError(f"precisions.{name}.keep.rest: only int8 and fp8 have a choice; {name} keeps fp32")
        for place, values in {
            "benchmark.batches": self.benchmark.batches,
            "benchmark.baselines": self.benchmark.baselines,
            "benchmark.requests": self.benchmark.requests,
            "build.tensorrt.compute_capabilities": self.build.tensorrt.compute_capabilities,
        }.items():
            if len(set(values)) < len(values):
                raise ValueError(f"{place}: lists a value twice: {', '.join(map(str, values))}")
        options = self.build.tensorrt
        if self.runtime == "tensorrt_rtx" and (options.version_compatible or options.hardware_compatibility != "none"):
            raise ValueError(
                "build.tensorrt: TensorRT for RTX has neither version_compatible nor hardware_compatibility; "
                "its engines are portable over compute_capabilities"
            )
        profile = self.build.profile
        outside = [str(batch) for batch in self.benchmark.batches if not profile.min <= batch <= profile.max]
        if outside:
            raise ValueError(
                f"benchmark.batches: {', '.join(outside)} lies outside build.profile {profile.min} to {profile.max}; "
                "widen the profile or drop the batch size"
            )
        if self.weights.training.size > self.samples.preprocessing.crop:
            raise ValueError(
                f"weights.training.size: {self.weights.training.size} is larger than the images, "
                f"samples.preprocessing.crop {self.samples.preprocessing.crop}"
            )
        if self.weights.source == "train" and self.samples.training == 0:
            raise ValueError("samples.training: weights.source is 'train', which needs training samples; got 0")
        return self


def load_params(path: Path = PARAMS_FILE) -> Params:
    try:
        content = YAML(typ="safe").load(path.read_text())
    except FileNotFoundError:
        raise EngineryError(f"{path} is not in {Path.cwd()}: run from the root of the project") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise EngineryError(f"{path} is not valid YAML: {yaml_problem(error)}") from None
    try:
        return Params.model_validate(content)
    except ValidationError as error:
        raise EngineryError(f"{path}: {'; '.join(_sentence(detail) for detail in error.errors())}") from None


def yaml_problem(error: Exception) -> str:
    """What is wrong and where, without the excerpts and advice that the parser adds."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def precision_params(params: Params, precision: str) -> PrecisionParams:
    for name, section in params.precisions.items():
        if name == precision:
            return section
    raise EngineryError(f"{PARAMS_FILE} has no section precisions.{precision}; it has {', '.join(params.precisions)}")


def _sentence(error: ErrorDetails) -> str:
    place = [str(part) for part in error["loc"] if part != "[key]"]
    name = ".".join(place)
    if error["type"] == "extra_forbidden":
        return f"{name} is not a parameter{_suggestion(place[-1], _siblings(place[:-1]))}"
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] == "literal_error" and place[0] == "precisions" and len(place) == 2:
        return f"{name}: unknown precision{_suggestion(place[1], list(get_args(PrecisionName)))}"
    if error["type"] == "value_error":
        return f"{name}: {error['ctx']['error']}" if name else str(error["ctx"]["error"])
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{name or 'the file'}: {message}, got {error['input']!r}"


def _siblings(place: list[str]) -> list[str]:
    """The parameters that may stand in the section at `place`."""
    model: Any = Params
    for part in place:
        if part in get_args(PrecisionName):
            model = PrecisionParams
        elif part != "precisions":
            model = model.model_fields[part].annotation
    return [field.alias or name for name, field in model.model_fields.items()]


def _suggestion(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{nearest[0]}'?" if nearest else f"; known here: {', '.join(known)}"


if __name__ == "__main__":  # what `make repro` asks before DVC reads the file, whose own words are harder to follow
    try:
        load_params()
    except EngineryError as mistake:
        sys.exit(str(mistake))

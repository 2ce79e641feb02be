"""params.yaml as frozen, validated values. An unknown or impossible entry is an error that names it."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
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
from enginery.core.suggestions import suggestion

PARAMS_FILE = Path("params.yaml")
MODEL = re.compile(r"\w+|\w+(\.\w+)*:\w+")
ONNXRUNTIME, EAGER = "onnxruntime", "eager"
LAUNCHES = (EAGER, "compile", "max_autotune", "cuda_graph")
NUMBERS = ("fp16", "bf16")
LAYOUTS = ("channels_last",)
LARGEST_SIDE = 65500  # of an image, in pixels
NO_SCORES = "none"  # model.scores of a model that tells no classes apart
OPSETS = range(18, 25)


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
Bound = Literal["min", "opt", "max"]
ENDS: tuple[Bound, ...] = ("min", "max")
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


def _height_and_width(given: Any) -> Any:
    """One number stands for both. It is checked here: of both, the same mistake would be told twice."""
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= LARGEST_SIDE:
        return given, given
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise ValueError(f"write one number from 1 to {LARGEST_SIDE}, or [height, width], not {given!r}")
    return given


def _names_or_file(given: Any) -> Any:
    listed = isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given)
    if given is not None and not isinstance(given, str) and not listed:
        raise ValueError(f"write null, a file, or a list of names (numbers in quotes), not {given!r}")
    return given


def _possible_opset(given: Any) -> Any:
    if not isinstance(given, int) or isinstance(given, bool) or given not in OPSETS:
        raise ValueError(
            f"write a whole number from {OPSETS[0]} to {OPSETS[-1]}, not {given!r}: "
            "PyTorch's exporter writes none older, and TensorRT 10 supports none newer"
        )
    return given


def _survives_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False


Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
Size = Annotated[tuple[Side, Side], BeforeValidator(_height_and_width)]
PerChannel = Annotated[tuple[float, ...], Field(min_length=1)]


class Preprocessing(Section):
    """Sizes are height and width. `mean` and `std` are in the order of `color`, of values after `divide_by`."""

    resize: Size
    resize_mode: Literal["shorter_side", "stretch", "pad"] = "shorter_side"
    fill: int = Field(default=0, ge=0, le=255)
    crop: Size
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    color: Literal["rgb", "bgr", "grey"] = "rgb"
    layout: Literal["nchw", "nhwc"] = "nchw"
    divide_by: float = Field(default=255.0, gt=0)
    mean: PerChannel
    std: PerChannel

    @property
    def channels(self) -> int:
        return 1 if self.color == "grey" else 3

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image, without the batch."""
        return (*self.crop, self.channels) if self.layout == "nhwc" else (self.channels, *self.crop)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.resize_mode == "shorter_side" and self.resize[0] != self.resize[1]:
            raise ValueError("resize: the shorter side is one number; [height, width] is for stretch and pad")
        for side, crop, resize in zip(("high", "wide"), self.crop, self.resize, strict=True):
            if crop > resize:
                raise ValueError(f"crop is {crop} {side}, which is larger than resize, {resize}")
        for name, values in {"mean": self.mean, "std": self.std}.items():
            if len(values) != self.channels:
                raise ValueError(f"{name} has {len(values)} values, and {self.color} has {self.channels} channels")
        if min(self.std) <= 0:
            raise ValueError("every std must be above 0")
        return self


class SamplesParams(Section):
    source: str
    class_names: Annotated[str | tuple[str, ...] | None, BeforeValidator(_names_or_file)] = None
    input: str = Field(default="input", min_length=1)
    seed: int = Field(ge=0)
    validation: int = Field(ge=1)
    training: int = Field(ge=0)
    calibration: int = Field(ge=1)
    preprocessing: Preprocessing | None


class ModelParams(Section):
    """A torchvision classifier, `package.module:factory` in the user's own code, or an ONNX file under data/models."""

    source: str
    arguments: dict[str, Any]
    scores: str | None = Field(default=None, min_length=1)

    @field_validator("arguments")
    @classmethod
    def _are_the_same_in_json(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """The first stage takes them from YAML, the others from what it recorded: they must make the same model."""
        for name, value in arguments.items():
            if not _survives_json(value):
                raise ValueError(
                    f"{name} is {value!r}, which no record keeps: write text, finite numbers, true, false, null, lists "
                    "and sections of those, and names and dates in quotes"
                )
        return arguments

    @field_validator("source")
    @classmethod
    def _is_one_of_three(cls, source: str) -> str:
        if not source.endswith(".onnx") and (not MODEL.fullmatch(source) or ".py:" in source):
            raise ValueError(
                f"'{source}' is neither a torchvision classifier, nor package.module:factory, nor data/models/FILE.onnx"
            )
        return source

    @property
    def is_onnx(self) -> bool:
        return self.source.endswith(".onnx")

    @property
    def is_factory(self) -> bool:
        return ":" in self.source and not self.is_onnx


class TrainingParams(Section):
    size: int = Field(ge=1)
    epochs: int = Field(ge=0)
    batch: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    seed: int = Field(ge=0)
    device: Literal["cpu", "cuda"]


class WeightsParams(Section):
    source: str
    training: TrainingParams


class ExportParams(Section):
    opset: Annotated[int, BeforeValidator(_possible_opset)]


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
    rest: Literal["auto", Rest] = "fp32"

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


class Range(Section):
    """The sizes of one axis that an engine accepts, and the one it is tuned for."""

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


class Profile(Section):
    """What varies from call to call: the batch, and the size of images if it is given as a range."""

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
        """The size of each axis."""
        return {axis: getattr(sizes, bound) for axis, sizes in self.ranges.items()}

    def __str__(self) -> str:
        return ", ".join(f"{axis} {sizes}" for axis, sizes in self.ranges.items())


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

    def on(self, cores: int) -> Self:
        """With the number of threads that 0 stands for."""
        return self.model_copy(update={"threads": self.threads or cores})


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
        sizes = self.build.profile.batch
        outside = [str(batch) for batch in self.benchmark.batches if batch not in sizes]
        if outside:
            raise ValueError(
                f"benchmark.batches: {', '.join(outside)} lies outside build.profile.batch {sizes}; "
                "widen the profile or drop the batch size"
            )
        return self

    @model_validator(mode="after")
    def _model_and_weights_agree(self) -> Self:
        """What a model can be trained with, loaded from and raced against depends on where it comes from."""
        model, source = self.model, self.weights.source
        if model.is_onnx and source != "given":
            raise ValueError(f"weights.source: {model.source} brings its own weights: set it to given, not '{source}'")
        if model.is_onnx and self.benchmark.baselines != (ONNXRUNTIME,):
            raise ValueError(
                f"benchmark.baselines: {model.source} has no PyTorch model to race against: set it to [{ONNXRUNTIME}]"
            )
        if model.is_factory and source == "pretrained":
            raise ValueError("weights.source: torchvision publishes weights of its own models alone; give a checkpoint")
        if not model.is_onnx and not model.is_factory and source == "given":
            raise ValueError(f"weights.source: torchvision's {model.source} brings no weights; give a checkpoint")
        if source == "train":
            self._require_trainable()
        return self

    def _require_trainable(self) -> None:
        how, size = self.samples.preprocessing, self.weights.training.size
        if how is None or how.layout == "nhwc":
            raise ValueError(
                "weights.source: train learns from images of samples.preprocessing.layout nchw; give weights"
            )
        if size > min(how.crop):
            raise ValueError(
                f"weights.training.size: {size} is larger than the images, samples.preprocessing.crop {min(how.crop)}"
            )
        if self.samples.training == 0:
            raise ValueError("samples.training: weights.source is 'train', which needs training samples; got 0")

    @model_validator(mode="after")
    def _images_fit_the_profile(self) -> Self:
        how, profile = self.samples.preprocessing, self.build.profile
        for index, axis in enumerate(("height", "width")):
            sizes = profile.ranges.get(axis)
            if sizes and how is None:
                raise ValueError(
                    f"build.profile.{axis}: arrays without samples.preprocessing vary in their batch alone"
                )
            if sizes and how and how.crop[index] not in sizes:
                raise ValueError(
                    f"build.profile.{axis}: the images of samples.preprocessing.crop, {how.crop[index]}, "
                    f"are not within {sizes}"
                )
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
        raise EngineryError(f"{path}: {'; '.join(map(_sentence, _causes(error.errors())))}") from None


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


def _causes(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without what only follows: a list is too short without its wrong entries, an unknown precision lacks all."""
    places = [_place(error) for error in errors]
    unknown = [place for error, place in zip(errors, places, strict=True) if _is_unknown_precision(error)]

    def follows(error: ErrorDetails, place: list[str]) -> bool:
        if error["type"] == "too_short":
            return any(other[: len(place)] == place and other != place for other in places)
        return any(place[:2] == section and place != section for section in unknown)

    return [error for error, place in zip(errors, places, strict=True) if not follows(error, place)]


def _place(error: ErrorDetails) -> list[str]:
    return [str(part) for part in error["loc"] if part != "[key]"]


def _is_unknown_precision(error: ErrorDetails) -> bool:
    return error["type"] == "literal_error" and error["loc"][0] == "precisions" and error["loc"][-1] == "[key]"


SECTION = "input should be a section of parameters"
IN_YAML = {"model_type": SECTION, "dict_type": SECTION, "tuple_type": "input should be a list"}


def _sentence(error: ErrorDetails) -> str:
    place = _place(error)
    name = ".".join(place)
    if error["type"] == "extra_forbidden":
        return f"{name} is not a parameter{suggestion(place[-1], _siblings(place[:-1]))}"
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] == "too_short":
        return f"{name} is empty"
    if _is_unknown_precision(error):
        return f"{name}: unknown precision; known here: {', '.join(get_args(PrecisionName))}"
    if error["type"] == "value_error":
        return f"{name}: {error['ctx']['error']}" if name else str(error["ctx"]["error"])
    message = IN_YAML.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:].partition(", got ")[0]
    return f"{name or 'the file'}: {message}, got {error['input']!r}"


def _siblings(place: list[str]) -> list[str]:
    """The parameters that may stand in the section at `place`."""
    model: Any = Params
    for part in place:
        if part in get_args(PrecisionName):
            model = PrecisionParams
        elif part != "precisions":
            annotation = model.model_fields[part].annotation
            model = next(kind for kind in (annotation, *get_args(annotation)) if hasattr(kind, "model_fields"))
    return [field.alias or name for name, field in model.model_fields.items()]


if __name__ == "__main__":  # what `make repro` asks before DVC reads the file, whose own words are harder to follow
    try:
        load_params()
    except EngineryError as mistake:
        sys.exit(str(mistake))

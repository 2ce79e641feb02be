"""The whole of params.yaml, and what its sections must agree on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import (
    CLASSIFICATION,
    DETECTION,
    OWN_TASK,
    PRECISIONS,
    QUANTIZED,
    TASKS,
    PrecisionName,
    RuntimeName,
)
from enginewright.core.params.build import BuildParams, InferenceParams
from enginewright.core.params.measuring import (
    ONNXRUNTIME,
    BenchmarkParams,
    ClusterParams,
    TimeoutParams,
    ValidationParams,
)
from enginewright.core.params.model import OF_QUERIES, ExportParams, ModelParams, WeightsParams
from enginewright.core.params.precisions import (
    USUAL,
    CalibrationParams,
    Keep,
    MixParams,
    PrecisionParams,
    SearchParams,
    with_defaults,
)
from enginewright.core.params.samples import SamplesParams
from enginewright.core.params.section import PARAMS_FILE, Section, explain, read_yaml
from enginewright.core.text import suggestion


class Params(Section):
    """All parameters. Each has a default, which counts where params.yaml leaves it out."""

    runtime: Literal["auto", RuntimeName] = Field(
        default="auto",
        description="what executes the engines: tensorrt, tensorrt_rtx (TensorRT for RTX, builds without a GPU), "
        "onnxruntime or openvino. auto takes TensorRT where it and an NVIDIA GPU are, else ONNX Runtime's CUDA "
        "provider; without a GPU, OpenVINO",
    )
    task: str = Field(
        default=CLASSIFICATION,
        description=f"what the outputs mean, and so which metric counts: {', '.join(TASKS)}, or package.module:Task of "
        "your own, see docs/tasks.md",
    )
    samples: SamplesParams = Field(
        default=SamplesParams(), description="what engines are calibrated with and judged on"
    )
    model: ModelParams = Field(default=ModelParams(), description="the network")
    weights: WeightsParams = Field(default=WeightsParams(), description="its weights")
    export: ExportParams = Field(default=ExportParams(), description="how it becomes an ONNX graph")
    calibration: CalibrationParams = Field(default=CalibrationParams(), description="how quantization ranges are found")
    search: dict[PrecisionName, SearchParams] = Field(
        default={},
        description="by precision: the layers that must stay in floating point, for it to keep its thresholds",
    )
    mix: dict[PrecisionName, MixParams] = Field(
        default={}, description="for the precision best, see docs/precisions.md"
    )
    precisions: dict[PrecisionName, PrecisionParams] = Field(
        min_length=1, description="the precisions to make; without any, fp32, fp16, bf16 and int8"
    )
    build: BuildParams = Field(default=BuildParams(), description="how engines are compiled")
    inference: InferenceParams = Field(default=InferenceParams(), description="how engines run")
    validation: ValidationParams = Field(default=ValidationParams(), description="how engines are judged")
    benchmark: BenchmarkParams = Field(default=BenchmarkParams(), description="how engines are timed")
    cluster: ClusterParams = Field(
        default=ClusterParams(),
        description="where samples, reference, calibrate, rescue, search and validate are spread over other machines, "
        "see docs/scale.md. Results differ by no more than rounding: a change runs the report and the gate alone",
    )
    timeouts: TimeoutParams = Field(
        default=TimeoutParams(),
        description="seconds that a stage may take before it is ended, such as {export: 600, search: 3600}, for each "
        "precision. What is not named takes as long as it takes. No result depends on it",
    )

    @classmethod
    def read(cls, file: Path = PARAMS_FILE) -> Self:
        return cls.checked(read_yaml(file), str(file))

    @classmethod
    def checked(cls, content: Any, origin: str) -> Self:
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise EnginewrightError(f"{origin}: {explain(error, cls, '')}") from None

    @model_validator(mode="before")
    @classmethod
    def _have_defaults(cls, content: Any) -> Any:
        """Give each precision its defaults, and each that is searched or mixed a section that says how."""
        if not isinstance(content, Mapping):
            return content
        listed = content.get("precisions")
        if listed is None:
            listed = dict.fromkeys(USUAL)
        if not isinstance(listed, Mapping):
            return content
        filled = {name: with_defaults(name, given) for name, given in listed.items()}
        sections = {}
        for section, source in (("search", "searched"), ("mix", "mixed")):
            given = content.get(section)
            needed = [name for name, each in filled.items() if isinstance(each, Mapping) and each.get("from") == source]
            sections[section] = given
            if given is None or isinstance(given, Mapping):
                said = {name: {} if each is None else each for name, each in (given or {}).items()}
                sections[section] = {name: {} for name in needed} | said
        return {**content, "precisions": filled, **sections}

    @field_validator("task")
    @classmethod
    def _is_a_task(cls, task: str) -> str:
        if task not in TASKS and not OWN_TASK.fullmatch(task):
            known = suggestion(task, TASKS)
            raise ValueError(f"there is no task '{task}'{known} A task of your own is package.module:Task")
        return task

    @model_validator(mode="after")
    def _precisions_are_possible(self) -> Self:
        for name, precision in self.precisions.items():
            if precision.made_from not in (possible := PRECISIONS[name].made_from):
                needed = " or ".join(f"'{each}'" for each in possible)
                raise ValueError(f"precisions.{name}.from: {name} is made from {needed}, not '{precision.made_from}'")
            over = precision.must_pay and precision.must_pay.over
            if over and (over == name or over not in self.precisions):
                raise ValueError(f"precisions.{name}.must_pay.over: {over} is not another precision that is made")
            if name == "fp32" and (precision.keep.op_types or precision.keep.nodes):
                raise ValueError("precisions.fp32.keep: fp32 is in high precision throughout, there is nothing to keep")
            if PRECISIONS[name].is_mixed and precision.keep != Keep(op_types=(), nodes=()):
                raise ValueError(f"precisions.{name}.keep: {name} keeps what the precisions that it is mixed of keep")
            if precision.rescue not in ("auto", "none") and not precision.is_searched:
                raise ValueError(
                    f"precisions.{name}.rescue: a precision is rescued only where its from is searched, "
                    f"not '{precision.made_from}'"
                )
            if precision.rescue != "auto" and "equalize" in precision.rescue and self.calibration.file:
                raise ValueError(
                    f"precisions.{name}.rescue: equalize measures ranges anew, which calibration.file gives: remove one"
                )
            if not PRECISIONS[name].is_quantized and precision.keep.rest != "fp32":
                with_choice = ", ".join(each for each in QUANTIZED if not PRECISIONS[each].is_mixed)
                raise ValueError(f"precisions.{name}.keep.rest: only {with_choice} have a choice; {name} keeps fp32")
        return self

    @model_validator(mode="after")
    def _searches_are_used(self) -> Self:
        searched = {name for name, precision in self.precisions.items() if precision.is_searched}
        for name in sorted(self.search.keys() - searched):
            raise ValueError(f"search.{name}: set precisions.{name}.from to searched, or remove it from search")
        return self

    @model_validator(mode="after")
    def _mixes_are_used(self) -> Self:
        for name in sorted(self.mix.keys() - {name for name in self.precisions if PRECISIONS[name].is_mixed}):
            raise ValueError(f"mix.{name}: add precisions.{name} with from: mixed, or remove it from mix")
        for name, section in self.mix.items():
            for part in ("int8", section.floating):
                if part not in self.precisions:
                    raise ValueError(f"mix.{name}: it is mixed of int8 and {section.floating}: add precisions.{part}")
        return self

    @model_validator(mode="after")
    def _lists_hold_each_value_once(self) -> Self:
        for place, values in {
            "benchmark.batches": self.benchmark.batches,
            "benchmark.baselines": self.benchmark.baselines,
            "benchmark.requests": self.benchmark.requests,
            "build.tensorrt.compute_capabilities": self.build.tensorrt.compute_capabilities,
            "build.tensorrt.plugins": self.build.tensorrt.plugin_names,
        }.items():
            if len(set(values)) < len(values):
                raise ValueError(f"{place}: lists a value twice: {', '.join(map(str, values))}")
        return self

    @model_validator(mode="after")
    def _runtime_has_what_build_asks_for(self) -> Self:
        options = self.build.tensorrt
        if self.runtime == "tensorrt_rtx" and (options.version_compatible or options.hardware_compatibility != "none"):
            raise ValueError(
                "build.tensorrt: TensorRT for RTX has neither version_compatible nor hardware_compatibility; "
                "its engines are portable over compute_capabilities"
            )
        return self

    @model_validator(mode="after")
    def _boxes_can_be_chosen_in_the_graph(self) -> Self:
        if not self.model.boxes.chooses_in_graph:
            return self
        if self.task != DETECTION:
            raise ValueError(f"model.boxes.nms: graph is for task: detection, and task is {self.task}: set outside")
        if self.runtime == "tensorrt_rtx" and self.model.boxes.form not in OF_QUERIES:
            raise ValueError(
                "model.boxes.nms: TensorRT for RTX reads NonMaxSuppression and has no kernel for it: set outside, or "
                "take another runtime"
            )
        for axis, sizes in self.build.profile.ranges.items():
            if axis != "batch" and not sizes.fixed:
                raise ValueError(
                    f"model.boxes.nms: graph needs the same number of boxes for each image, and build.profile has "
                    f"{axis} {sizes}: set outside, or one size"
                )
        return self

    @model_validator(mode="after")
    def _benchmark_stays_within_the_profile(self) -> Self:
        sizes = self.build.profile.batch
        if outside := [str(batch) for batch in self.benchmark.batches if batch not in sizes]:
            raise ValueError(
                f"benchmark.batches: {', '.join(outside)} lies outside build.profile.batch {sizes}; "
                "widen the profile or drop the batch size"
            )
        return self

    @model_validator(mode="after")
    def _profiles_are_parts_of_the_profile(self) -> Self:
        accepted, tuned = self.build.profile, [self.build.profile.at("opt")]
        for number, ranges in enumerate(self.build.profiles):
            place = f"build.profiles.{number}"
            for axis, sizes in ranges.items():
                if (whole := accepted.ranges.get(axis)) is None:
                    raise ValueError(f"{place}: build.profile has no {axis}{suggestion(axis, accepted.ranges)}")
                if sizes.min not in whole or sizes.max not in whole:
                    raise ValueError(f"{place}.{axis}: {sizes} lies outside build.profile, where it is {whole}")
            if (opt := accepted.narrowed(ranges).at("opt")) in tuned:
                raise ValueError(
                    f"{place}: another profile has the same opt, by which calls choose: give each an opt of its own"
                )
            tuned.append(opt)
        return self

    @model_validator(mode="after")
    def _model_and_weights_agree(self) -> Self:
        """Refuse weights and baselines that the source of the model rules out."""
        model, source = self.model, self.weights.source
        if model.is_onnx and source != "given":
            raise ValueError(f"weights.source: {model.source} brings its own weights: set it to given, not '{source}'")
        if model.is_onnx and self.benchmark.baselines != (ONNXRUNTIME,):
            raise ValueError(
                f"benchmark.baselines: {model.source} has no PyTorch model to race against: set it to [{ONNXRUNTIME}]"
            )
        if model.is_factory and source == "pretrained":
            raise ValueError("weights.source: torchvision publishes weights of its own models alone; give a checkpoint")
        if model.library == "transformers" and source in ("train", "pretrained"):
            raise ValueError(
                f"weights.source: {model.source} has its weights beside it: set it to given, not '{source}'"
            )
        if model.library == "timm" and source == "given":
            raise ValueError("weights.source: timm's models bring no weights; take pretrained, or give a checkpoint")
        if not model.is_onnx and not model.is_factory and model.library is None and source == "given":
            raise ValueError(f"weights.source: torchvision's {model.source} brings no weights; give a checkpoint")
        if source == "train":
            self._require_trainable()
        return self

    def _require_trainable(self) -> None:
        if self.task != CLASSIFICATION:
            raise ValueError(f"weights.source: train teaches classifiers alone, and task is {self.task}; give weights")
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
    def _texts_fit_the_profile(self) -> Self:
        """A text has one axis, which a profile may call as it likes. Without it, all texts are padded to one length."""
        text, axes = self.samples.text, self.build.profile.axes
        if text is None:
            return self
        if len(axes) > 1:
            raise ValueError(
                f"build.profile.axes: texts have one axis beside the batch, and here are {', '.join(axes)}"
            )
        if text.varies and not axes:
            lengths = f"min: {text.shortest}, opt: {max(text.shortest, text.longest // 2)}, max: {text.longest}"
            raise ValueError(
                f"build.profile.axes: texts are {text.shortest} to {text.longest} tokens long: add "
                f"sequence: {{{lengths}}}, or "
                f"set samples.text.multiple_of to {text.longest}, which pads all to one length"
            )
        for name, sizes in axes.items():
            if text.shortest not in sizes or text.longest not in sizes:
                raise ValueError(
                    f"build.profile.axes.{name}: is {sizes}, and texts are {text.shortest} to {text.longest} tokens "
                    "long: samples.text.multiple_of and samples.text.longest"
                )
        return self

    @model_validator(mode="after")
    def _images_fit_the_profile(self) -> Self:
        how, profile = self.samples.preprocessing, self.build.profile
        for index, axis in enumerate(("height", "width")):
            sizes = profile.ranges.get(axis)
            if sizes and how is None:
                raise ValueError(
                    f"build.profile.{axis}: only images of samples.preprocessing have one, arrays build.profile.axes"
                )
            if sizes and how and how.crop[index] not in sizes:
                raise ValueError(
                    f"build.profile.{axis}: the images of samples.preprocessing.crop, {how.crop[index]}, "
                    f"are not within {sizes}"
                )
        return self


def all_defaults() -> dict[str, Any]:
    """Return the default of each parameter, and those of all precisions."""
    everything = Params.model_validate({"precisions": dict.fromkeys(PRECISIONS)})
    return everything.model_dump(mode="json", by_alias=True)


def flat(section: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each parameter of a section by its place."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value

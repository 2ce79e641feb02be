"""The whole of params.yaml, what its sections must agree on, and how it is changed without losing its comments."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from ruamel.yaml import YAML
from typing_extensions import Self

from enginewright.core import facts
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_file
from enginewright.core.params.build import (
    ONNXRUNTIME,
    BenchmarkParams,
    BuildParams,
    ClusterParams,
    InferenceParams,
    Seconds,
    TimedStage,
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

    runtime: Literal["auto", facts.RuntimeName] = "auto"
    """what executes the engines: tensorrt, tensorrt_rtx (TensorRT for RTX, builds without a GPU), onnxruntime or
    openvino. auto takes TensorRT where it and an NVIDIA GPU are, else ONNX Runtime's CUDA provider; without a GPU,
    OpenVINO"""
    task: str = facts.CLASSIFICATION
    """what the outputs mean, and so which metric counts: classification, detection, segmentation, embedding, regression
    or ranking, or package.module:Task of your own, see docs/how-to/tasks.md"""
    samples: SamplesParams = SamplesParams()
    """what engines are calibrated with and judged on"""
    model: ModelParams = ModelParams()
    """the network"""
    weights: WeightsParams = WeightsParams()
    """its weights"""
    export: ExportParams = ExportParams()
    """how it becomes an ONNX graph"""
    calibration: CalibrationParams = CalibrationParams()
    """how quantization ranges are found"""
    search: dict[facts.PrecisionName, SearchParams] = Field(default={})
    """by precision: the layers that must stay in floating point, for it to keep its thresholds"""
    mix: dict[facts.PrecisionName, MixParams] = Field(default={})
    """for the precision best, see docs/explanation/best.md"""
    precisions: dict[facts.PrecisionName, PrecisionParams] = Field(min_length=1)
    """the precisions to make; without any, fp32, fp16, bf16 and int8"""
    build: BuildParams = BuildParams()
    """how engines are compiled"""
    inference: InferenceParams = InferenceParams()
    """how engines run"""
    validation: ValidationParams = ValidationParams()
    """how engines are judged"""
    benchmark: BenchmarkParams = BenchmarkParams()
    """how engines are timed"""
    cluster: ClusterParams = ClusterParams()
    """where samples, reference, calibrate, rescue, search and validate are spread over other machines, see
    docs/how-to/machines.md. Results differ by no more than rounding: a change runs the report and the gate alone"""
    timeouts: dict[TimedStage, Seconds] = Field(default={})
    """seconds that a stage may take before it is ended, such as {export: 600, search: 3600}, for each precision. What
    is not named takes as long as it takes. No result depends on it"""

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
        search: Any = content.get("search")
        for name, each in search.items() if isinstance(search, Mapping) else ():  # where `cure` may be said, too
            if isinstance(each, Mapping) and "cure" in each and isinstance(filled.get(name), Mapping):
                filled[name] = {**filled[name], "cure": each["cure"]}
                search = {**search, name: {key: value for key, value in each.items() if key != "cure"}}
        content = {**content, "search": search}
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
        if task not in facts.TASKS and not facts.OWN_TASK.fullmatch(task):
            known = suggestion(task, facts.TASKS)
            raise ValueError(f"there is no task '{task}'{known} A task of your own is package.module:Task")
        return task

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        parts = self._precisions_disagree(), self._engines_disagree(), self._model_disagrees(), self._samples_disagree()
        if contradiction := next(chain.from_iterable(parts), None):
            raise ValueError(contradiction)
        return self

    def _precisions_disagree(self) -> Iterator[str]:
        for name, precision in self.precisions.items():
            known, keep, place = facts.PRECISIONS[name], precision.keep, f"precisions.{name}"
            if precision.made_from not in known.made_from:
                needed = " or ".join(f"'{each}'" for each in known.made_from)
                yield f"{place}.from: {name} is made from {needed}, not '{precision.made_from}'"
            over = precision.must_pay and precision.must_pay.over
            if over and (over == name or over not in self.precisions):
                yield f"{place}.must_pay.over: {over} is not another precision that is made"
            if name == "fp32" and (keep.op_types or keep.nodes):
                yield f"{place}.keep: fp32 is in high precision throughout, there is nothing to keep"
            if known.is_mixed and keep != Keep(op_types=(), nodes=()):
                yield f"{place}.keep: {name} keeps what the precisions that it is mixed of keep"
            if precision.made_from == "given" and (keep.op_types or keep.nodes):
                yield f"{place}.keep: what `from: given` has in high precision is as the model has it"
            if precision.rescue not in ("auto", "none") and not precision.is_searched:
                only = "a precision is rescued only where its from is searched"
                yield f"{place}.rescue: {only}, not '{precision.made_from}'"
            if precision.rescue != "auto" and "equalize" in precision.rescue and self.calibration.file:
                yield f"{place}.rescue: equalize measures ranges anew, which calibration.file gives: remove one"
            if not known.is_quantized and keep.rest != "fp32":
                with_choice = ", ".join(each for each in facts.QUANTIZED if not facts.PRECISIONS[each].is_mixed)
                yield f"{place}.keep.rest: only {with_choice} have a choice; {name} keeps fp32"
        searched = {name for name, precision in self.precisions.items() if precision.is_searched}
        for name in sorted(self.search.keys() - searched):
            yield f"search.{name}: set precisions.{name}.from to searched, or remove it from search"
        for name in sorted(self.mix.keys() - {name for name in self.precisions if facts.PRECISIONS[name].is_mixed}):
            yield f"mix.{name}: add precisions.{name} with from: mixed, or remove it from mix"
        for name, section in self.mix.items():
            for part in ("int8", section.floating):
                if part in self.precisions and self.precisions[part].made_from == "given":
                    yield f"mix.{name}: it is mixed of an int8 that is searched or calibrated, not 'given'"
                if part not in self.precisions:
                    yield f"mix.{name}: it is mixed of int8 and {section.floating}: add precisions.{part}"

    def _engines_disagree(self) -> Iterator[str]:
        options, accepted = self.build.tensorrt, self.build.profile
        for place, values in {
            "benchmark.batches": self.benchmark.batches,
            "benchmark.baselines": self.benchmark.baselines,
            "benchmark.requests": self.benchmark.requests,
            "build.tensorrt.compute_capabilities": options.compute_capabilities,
            "build.tensorrt.plugins": options.plugin_names,
        }.items():
            if len(set(values)) < len(values):
                yield f"{place}: lists a value twice: {', '.join(map(str, values))}"
        if self.runtime == "tensorrt_rtx" and (options.version_compatible or options.hardware_compatibility != "none"):
            yield (
                "build.tensorrt: TensorRT for RTX has neither version_compatible nor hardware_compatibility; "
                "its engines are portable over compute_capabilities"
            )
        if outside := [str(batch) for batch in self.benchmark.batches if batch not in accepted.batch]:
            yield (
                f"benchmark.batches: {', '.join(outside)} lies outside build.profile.batch {accepted.batch}; "
                "widen the profile or drop the batch size"
            )
        tuned = [accepted.at("opt")]
        for number, ranges in enumerate(self.build.profiles):
            place = f"build.profiles.{number}"
            for axis, sizes in ranges.items():
                if (whole := accepted.ranges.get(axis)) is None:
                    yield f"{place}: build.profile has no {axis}{suggestion(axis, accepted.ranges)}"
                elif sizes.min not in whole or sizes.max not in whole:
                    yield f"{place}.{axis}: {sizes} lies outside build.profile, where it is {whole}"
            if (opt := accepted.narrowed(ranges).at("opt")) in tuned:
                yield f"{place}: another profile has the same opt, by which calls choose: give each an opt of its own"
            tuned.append(opt)

    def _model_disagrees(self) -> Iterator[str]:
        """Yield what the source of the model rules out, of weights, baselines and boxes."""
        model, source, boxes = self.model, self.weights.source, self.model.boxes
        if model.is_onnx and source != "given":
            yield f"weights.source: {model.source} brings its own weights: set it to given, not '{source}'"
        if model.is_onnx and self.benchmark.baselines != (ONNXRUNTIME,):
            yield f"benchmark.baselines: {model.source} has no PyTorch model to race against: set it to [{ONNXRUNTIME}]"
        if model.is_factory and source == "pretrained":
            yield "weights.source: torchvision publishes weights of its own models alone; give a checkpoint"
        if model.library == "transformers" and source in ("train", "pretrained"):
            yield f"weights.source: {model.source} has its weights beside it: set it to given, not '{source}'"
        if model.library == "timm" and source == "given":
            yield "weights.source: timm's models bring no weights; take pretrained, or give a checkpoint"
        if not model.is_onnx and not model.is_factory and model.library is None and source == "given":
            yield f"weights.source: torchvision's {model.source} brings no weights; give a checkpoint"
        if boxes.chooses_in_graph and self.task != facts.DETECTION:
            yield f"model.boxes.nms: graph is for task: detection, and task is {self.task}: set outside"
        if boxes.chooses_in_graph and self.runtime == "tensorrt_rtx" and boxes.form not in OF_QUERIES:
            yield (
                "model.boxes.nms: TensorRT for RTX reads NonMaxSuppression and has no kernel for it: set outside, or "
                "take another runtime"
            )
        for axis, sizes in self.build.profile.ranges.items():
            if boxes.chooses_in_graph and axis != "batch" and not sizes.fixed:
                yield (
                    f"model.boxes.nms: graph needs the same number of boxes for each image, and build.profile has "
                    f"{axis} {sizes}: set outside, or one size"
                )

    def _samples_disagree(self) -> Iterator[str]:
        how, text, profile = self.samples.preprocessing, self.samples.text, self.build.profile
        if self.weights.source == "train":
            size = self.weights.training.size
            if self.task != facts.CLASSIFICATION:
                yield f"weights.source: train teaches classifiers alone, and task is {self.task}; give weights"
            elif how is None or how.layout == "nhwc":
                yield "weights.source: train learns from images of samples.preprocessing.layout nchw; give weights"
            elif size > min(how.crop):
                crop = min(how.crop)
                yield f"weights.training.size: {size} is larger than the images, samples.preprocessing.crop {crop}"
            if self.samples.training == 0:
                yield "samples.training: weights.source is 'train', which needs training samples; got 0"
        if text:  # it has one axis, which a profile may call as it likes; without it, all are padded to one length
            if len(profile.axes) > 1:
                named = ", ".join(profile.axes)
                yield f"build.profile.axes: texts have one axis beside the batch, and here are {named}"
            lengths = f"texts are {text.shortest} to {text.longest} tokens long"
            if text.varies and not profile.axes:
                opt = max(text.shortest, text.longest // 2)
                yield (
                    f"build.profile.axes: {lengths}: add sequence: {{min: {text.shortest}, opt: {opt}, max: "
                    f"{text.longest}}}, or set samples.text.multiple_of to {text.longest}, which pads all to one length"
                )
            for name, sizes in profile.axes.items():
                if text.shortest not in sizes or text.longest not in sizes:
                    yield (
                        f"build.profile.axes.{name}: is {sizes}, and {lengths}: samples.text.multiple_of and "
                        "samples.text.longest"
                    )
        for index, axis in enumerate(("height", "width")):
            if (sides := profile.ranges.get(axis)) is None:
                continue
            if how is None:
                yield f"build.profile.{axis}: only images of samples.preprocessing have one, arrays build.profile.axes"
            elif how.crop[index] not in sides:
                yield (
                    f"build.profile.{axis}: the images of samples.preprocessing.crop, {how.crop[index]}, are not "
                    f"within {sides}"
                )


def all_defaults() -> dict[str, Any]:
    """Return the default of each parameter, and those of all precisions."""
    everything = Params.model_validate({"precisions": dict.fromkeys(facts.PRECISIONS)})
    return everything.model_dump(mode="json", by_alias=True)


def flat(section: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each parameter of a section by its place."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


Content = MutableMapping[str, Any]


def apply_recipe(recipe: Path, params_file: Path = PARAMS_FILE) -> None:
    """Lay the parameters that a file names over params.yaml, unless the result would not be valid."""
    edit_params(lambda params: overlay(params, read_content(recipe)), str(recipe), params_file)


def edit_params(change: Callable[[Content], None], whose: str, params_file: Path = PARAMS_FILE) -> None:
    """Change params.yaml and keep its comments. If the result is not valid, say so of `whose` change it is."""
    params = read_content(params_file)
    change(params)
    with new_file(params_file.resolve()) as temporary:  # which may be a link to what several projects share
        _yaml().dump(params, temporary)
        try:
            Params.read(temporary)
        except EnginewrightError as error:
            raise EnginewrightError(str(error).replace(str(temporary), whose)) from None


def _yaml() -> YAML:
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 120, True
    yaml.Representer = type("Representer", (yaml.Representer,), {})  # its class is also DVC's
    null = "tag:yaml.org,2002:null", "null"  # as in params.yaml: by itself, ruamel would write nothing at all
    yaml.representer.add_representer(type(None), lambda representer, _: representer.represent_scalar(*null))
    in_one_line = {"tag": "tag:yaml.org,2002:seq", "flow_style": True}  # lists that the file does not have yet
    yaml.representer.add_representer(list, lambda made, items: made.represent_sequence(sequence=items, **in_one_line))
    return yaml


def read_content(path: Path) -> Content:
    if not isinstance(read_yaml(path), Mapping):
        raise EnginewrightError(f"{path} holds no parameters")
    content: Content = _yaml().load(path)
    return content


def overlay(params: Content, changes: Content) -> None:
    for key, value in changes.items():
        if isinstance(value, MutableMapping) and isinstance(params.get(key), MutableMapping):
            overlay(params[key], value)
        elif isinstance(value, list) and isinstance(params.get(key), list):
            params[key][:] = value  # in the layout of the list: `dvc exp run -S` leaves a line for each item
        else:
            params[key] = value

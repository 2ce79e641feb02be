"""Refuse to bundle an engine that is not whole, has not passed the gate, or is not the one that was judged. Gather what
the bundle's pages state of it from its record and the report, and render them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from enginewright.bundle.sbom import LICENCE, licence_of
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import ADDS_EXACTLY, CLASSIFICATION, RUNTIMES
from enginewright.core.files import templates_in
from enginewright.core.installing import installed_version
from enginewright.core.params.all import Params
from enginewright.core.params.model import NO_SCORES
from enginewright.core.text import counted, file_size
from enginewright.data.feeds import BATCH
from enginewright.engine.machine import Machine, where
from enginewright.engine.record import REPRODUCE, EngineRecord, read_engine, require_made_of
from enginewright.engine.runtimes import INSTRUCTION_SETS
from enginewright.graph.files import data_of
from enginewright.measure.records import ENGINE, RUNS_FOR_P99, Measurement, Measurements, Verdict, baseline_title
from enginewright.measure.timing import broken_limits, machine_problems
from enginewright.tasks.boxes import DISTINCT, PAIRS
from enginewright.tasks.choose import class_of, task_of
from enginewright.tasks.detection import Detection
from enginewright.tasks.task import Task

Example = Literal["classes", "boxes", "texts", "arrays"]
TEMPLATES = Path(__file__).parent / "templates"
EXAMPLE_NEEDS = {"classes": ("pillow",), "boxes": ("pillow",), "texts": ("tokenizers",)}  # beside NumPy
SHOWN = 16  # values of each output that an example for arrays prints
CPP_TYPES = {
    "float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
TRITON = ("tensorrt", "onnxruntime", "openvino")  # runtimes, whose backends have the same names
AGAIN = "run `dvc repro` to judge it"


class Passed(NamedTuple):
    """An engine that may be bundled, the graph that it was made of, and what was measured of it."""

    folder: Path
    onnx: Path
    record: EngineRecord
    measured: Measurement
    machine: Machine
    samples: Path  # of the validation
    doubts: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """Return what ONNX Runtime's CUDA provider must be told to run the engine as it was validated."""
        target = self.record.target
        if (target.runtime, target.device) != ("onnxruntime", "cuda"):
            return {}
        from onnx import load_model  # here: other engines are bundled without onnx

        from enginewright.engine.runtimes.onnxruntime import GRAPH, noted_settings

        return noted_settings(load_model(self.folder / GRAPH, load_external_data=False), self.record.build)


def require_passed(precision: str, artifacts: Path, reports: Path) -> Passed:
    """Return the engine of a precision, or refuse it and say why."""
    verdict = Verdict.read(reports / "verdict.json")
    if precision not in verdict.failures:
        judged = ", ".join(verdict.failures)
        raise EnginewrightError(f"{reports / 'verdict.json'} judges no precision '{precision}', only {judged}")
    if why := verdict.failures[precision]:
        raise EnginewrightError(f"{precision} did not pass the gate and is not bundled: {', '.join(why)}")
    folder, onnx = artifacts / "engines" / precision, artifacts / "converted" / precision / "model.onnx"
    record = read_engine(folder)
    if not onnx.is_file():
        raise EnginewrightError(f"{onnx} is missing: run `dvc repro` to make it, or `dvc checkout` to restore it")
    require_made_of(record, precision, onnx)
    measurements = Measurements.read(reports / "measurements.json")
    measured = next((each for each in measurements.precisions if each.precision == precision), None)
    if measured is None:
        raise EnginewrightError(f"{reports / 'measurements.json'} knows no {precision}: {AGAIN}")
    # A report of yesterday says nothing about another engine.
    if measured.validation.engine != record.identity:
        raise EnginewrightError(f"{folder} is not the engine that the report judges: {AGAIN}")
    if measured.validation.broken:  # verdict.json can be of another run than measurements.json
        raise EnginewrightError(f"{record.precision} broke its thresholds: {', '.join(measured.validation.broken)}")
    if why := measured.validation.not_enough_samples:
        raise EnginewrightError(f"{record.precision} may break its thresholds and is not bundled: {', '.join(why)}")
    samples, doubts = artifacts / "samples" / "validation", doubts_of(verdict, record, measured)
    return Passed(folder, onnx, record, measured, measurements.machine, samples, doubts)


def doubts_of(verdict: Verdict, record: EngineRecord, measured: Measurement) -> tuple[str, ...]:
    """Return what the report warns of about a precision that passed: what it ran as, too few samples, a race that could
    not tell engines apart, and what disturbed the machine while this one was timed."""
    precision, timed = record.precision, measured.benchmark
    found = [f"{precision} ran as {record.ran_as} where it was judged, and is never recommended"] * bool(record.ran_as)
    few = dict.fromkeys((*verdict.unsure.get(precision, ()), *measured.validation.unsure))
    found += [f"not sure, the samples are too few: {why}" for why in few]
    found += [verdict.doubt.rstrip(".")] * bool(verdict.doubt)
    return (*found, *(f"its timings may be off: {why}" for why in machine_problems(timed)))


def render(template: str, facts: Mapping[str, object]) -> str:
    environment = templates_in(TEMPLATES)
    environment.filters |= {"title_of": baseline_title, "file_size": file_size}
    return environment.get_template(template).render(facts)


def facts_of(passed: Passed, params: Params, model: str, signed: bool = False) -> dict[str, object]:
    record, measured = passed.record, passed.measured
    target, benchmark, tuned = record.target, measured.benchmark, record.profile.at("opt")
    is_tensorrt, options = RUNTIMES[target.runtime].is_tensorrt, record.build.tensorrt
    inputs, outputs, kind = record.interface.inputs, record.interface.outputs, example_of(record)
    graph = f"triton/{model}/1/model.xml" if target.runtime == "openvino" and is_served(record) else "model.onnx"
    ranges = {axis: f"{one.min}..{one.max}" for axis, one in record.profile.ranges.items()}
    return {
        "model": model,
        "signed": signed,
        "record": record,
        "target": target,
        "batch": record.profile.batch,
        "benchmark": benchmark,
        "why_noisy": broken_limits,
        "within": benchmark.within,
        "runtime": target.runtime.removesuffix("_rtx"),
        "rtx": target.runtime == "tensorrt_rtx",
        "title": RUNTIMES[target.runtime].title,
        "engine_file": next(name for name in record.files if name.startswith("engine.")),
        "runs_on": where(target),
        "executed": ", ".join(f"{count} {name}" for name, count in record.executed.items()) or "not known",
        "validation": measured.validation,
        "runs_for_p99": RUNS_FOR_P99,
        "latencies": [latency for latency in benchmark.latencies if latency.contender == ENGINE],
        "measured_on": f"{passed.machine.device_name}, {counted(benchmark.threads, 'thread')} on "
        f"{counted(passed.machine.cores, 'core')}",
        "kind": kind,
        "cpp": has_cpp_example(record),
        "graph": graph,
        "read_graph": "openvino.convert_model(graph)" if graph == "model.onnx" else "graph",
        "again": f"`dvc repro` and `enginewright bundle {record.precision}`",
        "instruction_sets": INSTRUCTION_SETS,
        "needs_one_of": needs_one_of(record),
        "doubts": passed.doubts,
        "replays": benchmark.cuda_graph and kind != "texts",  # whose sizes differ from call to call
        "plugins": options.plugin_names if is_tensorrt else [],
        "profiles": len(record.build.all_profiles),
        "stripped": bool(record.weights),
        "streamed": is_tensorrt and options.streaming,
        "weights_on_gpu": params.inference.weights_on_gpu_mb,
        "params": params,
        "served": is_served(record),
        "sized": holds_sizes(record),
        "settings": passed.settings,
        "reproduce": f"{'engine/' if is_tensorrt else ''}{REPRODUCE}",
        "sizes": tuned,
        "shape_ranges": _shapes(record, ranges),
        "shape": _shapes(record, tuned | {BATCH: "$batch"}),
        "weights": data_of(passed.onnx).name if data_of(passed.onnx).exists() else None,
        "requirements": requirements(record),
        "inputs": [spec.name for spec in inputs],
        "outputs": [spec.name for spec in outputs],
        "output": _answering(record) if kind == "texts" else outputs[0].name,
        "output_types": {spec.name: spec.dtype for spec in outputs},
        "output_sizes": [list(spec.shape[1:]) for spec in outputs],
        "ranks": [len(spec.shape) for spec in inputs],
        "input_types": [CPP_TYPES.get(spec.dtype) for spec in inputs],
        "types": [CPP_TYPES.get(spec.dtype) for spec in outputs],
        "image_size": record.preprocessing.crop if record.preprocessing else None,
        "program": class_of(record.task).program if kind != "arrays" else Task.program,
        "shown": SHOWN,
        "pairs": PAIRS,
        "distinct": DISTINCT,
        "boxes": boxes_of(record) if kind == "boxes" else None,
        "needed": ["numpy", *EXAMPLE_NEEDS.get(kind or "", ())],
        "distributions": RUNTIMES[target.runtime].distributions,
        "licence_of": licence_of,
        "enginewright_licence": LICENCE,
    }


def needs_one_of(record: EngineRecord) -> list[str]:
    """Return the instruction sets of which a CPU needs one, or the graph itself is wrong: it adds bytes exactly."""
    is_in_bytes = record.precision in ("int8", "best") and "int8" in record.executed
    adds_exactly = not ADDS_EXACTLY.isdisjoint(record.target.capabilities[0].split())
    return sorted(ADDS_EXACTLY) if record.target.device == "cpu" and is_in_bytes and adds_exactly else []


def is_served(record: EngineRecord) -> bool:
    """Tell whether Triton can serve the engine: its backend of TensorRT never refits one that lacks its weights, and
    no configuration for inputs that hold sizes was tried."""
    return record.target.runtime in TRITON and not record.weights and not holds_sizes(record)


def holds_sizes(record: EngineRecord) -> bool:
    return any(spec.values for spec in record.interface.inputs)


def example_of(record: EngineRecord) -> Example | None:
    """Return what the example for this engine reads: images, whose class or boxes it says, texts, or else arrays."""
    inputs, outputs = record.interface.inputs, record.interface.outputs
    on_tensorrt = RUNTIMES[record.target.runtime].is_tensorrt
    if on_tensorrt and (holds_sizes(record) or any("?" in spec.shape for spec in outputs)):
        return None  # sizes that are read on the host, or known after a run: none of this was tried by an example
    if record.text and _answering(record):
        return "texts"
    is_fixed = all(isinstance(size, int) for spec in outputs for size in spec.shape[1:])
    if record.preprocessing and record.scores != NO_SCORES and len(inputs) == 1 and is_fixed:
        if boxes_of(record):
            return "boxes"
        if record.task == CLASSIFICATION and len(outputs) == 1 and len(outputs[0].shape) == 2:
            return "classes"
    return "arrays"


def has_cpp_example(record: EngineRecord) -> bool:
    """Tell whether it is there in C++, too, which has no type for some outputs."""
    kind, types = example_of(record), {spec.dtype for spec in record.interface.outputs}
    return kind is not None and (types <= CPP_TYPES.keys() if kind != "boxes" else types == {"float32"})


def boxes_of(record: EngineRecord) -> dict[str, object] | None:
    """Return how a detector's outputs become boxes, and the places of these outputs, for the code in a bundle."""
    task = task_of(record.task, record.scores, record.class_names, record.boxes, record.preprocessing)
    shapes = {spec.name: spec.shape for spec in record.interface.outputs}
    if not isinstance(task, Detection) or (layout := task.layout(shapes)) is None:
        return None
    return task.settings(layout.form).model_dump() | {"outputs": [list(shapes).index(each) for each in layout.outputs]}


def _answering(record: EngineRecord) -> str | None:
    """Return the output that the task reads."""
    task = task_of(record.task, record.scores, record.class_names)
    return task.reads({spec.name: spec.shape for spec in record.interface.outputs})


def _shapes(record: EngineRecord, sizes: Mapping[str, object]) -> str:
    """Write the shapes of all inputs as benchmark_app reads them."""
    shapes = {spec.name: [sizes.get(str(size), size) for size in spec.shape] for spec in record.interface.inputs}
    return ",".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in shapes.items())


def requirements(record: EngineRecord) -> list[str]:
    """Return what the example needs: the runtime in the engine's version, other packages in those tried here."""
    facts = RUNTIMES[record.target.runtime]
    name = next(filter(installed_version, facts.distributions), facts.distributions[0])
    bindings = ("cuda-bindings",) if facts.is_tensorrt else ()
    others = ("numpy", *EXAMPLE_NEEDS.get(example_of(record) or "", ()), *bindings)
    tried = [f"{other}=={version}" if (version := installed_version(other)) else other for other in others]
    return [f"{name}=={record.target.runtime_version}", *tried]

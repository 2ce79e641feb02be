"""The facts that a bundle's pages state, gathered from the engine's record and the report."""

from collections.abc import Mapping

from enginery.bundle.gate import Passed
from enginery.bundle.licences import DATA, LICENCE, WEIGHTS, about_model, licence_of, terms_of
from enginery.bundle.triton import holds_sizes, is_served
from enginery.core.params.all import Params
from enginery.core.params.model import NO_SCORES
from enginery.core.runtimes import RUNTIMES
from enginery.core.tasks import CLASSIFICATION, DETECTION, RANKING
from enginery.core.text import counted
from enginery.data.feeds import BATCH
from enginery.engine.description import where
from enginery.engine.folder import REPRODUCE
from enginery.engine.record import EngineRecord
from enginery.engine.tools import installed_version
from enginery.graph.files import data_of
from enginery.speed.records import ENGINE, RUNS_FOR_P99
from enginery.tasks.boxes import DISTINCT, PAIRS
from enginery.tasks.choose import task_of
from enginery.tasks.detection import Detection

MEASURED_BY = {
    "openvino": "OpenVINO's own tool", "onnxruntime": "a bare loop",
    "tensorrt": "NVIDIA's own tool", "tensorrt_rtx": "NVIDIA's own tool",
}  # fmt: skip
PROGRAMS = {CLASSIFICATION: "classify", DETECTION: "detect", "embedding": "embed", RANKING: "rank"}
CPP_LIBRARIES = {"tensorrt": "nvinfer", "tensorrt_rtx": "tensorrt_rtx"}


def facts_of(passed: Passed, params: Params, model: str, signed: bool = False) -> dict[str, object]:
    record, measured = passed.record, passed.measured
    target, benchmark = record.target, measured.benchmark
    ranges = {axis: f"{one.min}..{one.max}" for axis, one in record.profile.ranges.items()}
    return {
        "model": model,
        "signed": signed,
        "record": record,
        "target": target,
        "batch": record.profile.batch,
        "benchmark": benchmark,
        "title": RUNTIMES[target.runtime].title,
        "runs_on": where(target),
        "executed": ", ".join(f"{count} {name}" for name, count in record.executed.items()) or "not known",
        "validation": measured.validation,
        "runs_for_p99": RUNS_FOR_P99,
        "latencies": [latency for latency in benchmark.latencies if latency.contender == ENGINE],
        "measured_on": f"{passed.machine.device_name}, {counted(benchmark.threads, 'thread')} on "
        f"{counted(passed.machine.cores, 'core')}",
        "example": has_example(record),
        "texts": record.text is not None,
        "cpp": has_cpp_example(record),
        "replays": benchmark.cuda_graph,
        "plugins": record.build.tensorrt.plugin_names if RUNTIMES[target.runtime].is_tensorrt else [],
        "profiles": len(record.build.all_profiles),
        "stripped": bool(record.weights),
        "streamed": RUNTIMES[target.runtime].is_tensorrt and record.build.tensorrt.streaming,
        "weights_on_gpu": params.inference.weights_on_gpu_mb,
        "rtx": target.runtime == "tensorrt_rtx",
        "cpp_library": CPP_LIBRARIES.get(target.runtime),
        "served_plugins": [f"/models/{model}/1/{name}" for name in record.build.tensorrt.plugin_names],
        "served": is_served(record),
        "sized": holds_sizes(record),
        "settings": passed.settings,
        "reproduce": f"{'engine/' if RUNTIMES[target.runtime].is_tensorrt else ''}{REPRODUCE}",
        "measured_by": MEASURED_BY[target.runtime],
        "sizes": record.profile.at("opt"),
        "shape_ranges": _shapes(record, ranges),
        "shape": _shapes(record, record.profile.at("opt") | {BATCH: "$batch"}),
        "weights": data_of(passed.onnx).name if data_of(passed.onnx).exists() else None,
        "requirements": requirements(record),
        **(example_facts(record) if has_example(record) else {}),
        "boxes": boxes_of(record),
        "about_model": about_model(params),
        "about_weights": terms_of(params.weights.source, WEIGHTS),
        "about_data": terms_of(params.samples.source, DATA),
        "distributions": RUNTIMES[target.runtime].distributions,
        "licence_of": licence_of,
        "enginery_licence": LICENCE,
    }


def has_example(record: EngineRecord) -> bool:
    """Tell whether there is an example for this engine: classifiers with an image in and scores out have one,
    detectors, and models of texts."""
    inputs, outputs = record.interface.inputs, record.interface.outputs
    if holds_sizes(record):
        return False
    if record.text:
        return answering(record) is not None
    if record.preprocessing is None or record.scores == NO_SCORES or len(inputs) != 1:
        return False
    if not all(isinstance(size, int) for spec in outputs for size in spec.shape[1:]):
        return False
    return boxes_of(record) is not None or (
        record.task == CLASSIFICATION and len(outputs) == 1 and len(outputs[0].shape) == 2
    )


def has_cpp_example(record: EngineRecord) -> bool:
    return has_example(record) and RUNTIMES[record.target.runtime].is_tensorrt


def boxes_of(record: EngineRecord) -> dict[str, object] | None:
    """Return how a detector's outputs become boxes, and the places of these outputs, for the code in a bundle."""
    task = task_of(record.task, record.scores, record.class_names, record.boxes, record.preprocessing)
    shapes = {spec.name: spec.shape for spec in record.interface.outputs}
    if not isinstance(task, Detection) or (layout := task.layout(shapes)) is None:
        return None
    return task.settings(layout.form).model_dump() | {"outputs": [list(shapes).index(each) for each in layout.outputs]}


def answering(record: EngineRecord) -> str | None:
    """Return the output that the task reads."""
    task = task_of(record.task, record.scores, record.class_names)
    return task.reads({spec.name: spec.shape for spec in record.interface.outputs})


def example_facts(record: EngineRecord) -> dict[str, object]:
    if record.text:
        return {
            "output": answering(record),
            "outputs": [spec.name for spec in record.interface.outputs],
            "inputs": [spec.name for spec in record.interface.inputs],
            "input_type": f"{record.text.how.dtype}_t",
            "program": PROGRAMS.get(record.task, "answer"),
        }
    (source,), targets, how = record.interface.inputs, record.interface.outputs, record.preprocessing
    assert how is not None, "has_example looked"
    return {
        "input": source.name,
        "outputs": [spec.name for spec in targets],
        "output_sizes": [list(spec.shape[1:]) for spec in targets],
        "image": how.shape,
        "image_size": how.crop,
        "program": PROGRAMS[record.task],
        "pairs": PAIRS,
        "distinct": DISTINCT,
    }


def _shapes(record: EngineRecord, sizes: Mapping[str, object]) -> str:
    """Write the shapes of all inputs as benchmark_app reads them."""
    shapes = {spec.name: [sizes.get(str(size), size) for size in spec.shape] for spec in record.interface.inputs}
    return ",".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in shapes.items())


def requirements(record: EngineRecord) -> list[str]:
    """Return what the example needs: the runtime in the engine's version, other packages in those tried here."""
    target = record.target
    distributions = RUNTIMES[target.runtime].distributions
    name = next(filter(installed_version, distributions), distributions[0])
    others = [
        "numpy",
        "tokenizers" if record.text else "pillow",
        *(["cuda-bindings"] if RUNTIMES[target.runtime].is_tensorrt else []),
    ]
    tried = [f"{other}=={version}" if (version := installed_version(other)) else other for other in others]
    return [f"{name}=={target.runtime_version}", *tried]

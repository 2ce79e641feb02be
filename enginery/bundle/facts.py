"""The facts that a bundle's pages state, gathered from the engine's record and the report."""

from collections.abc import Mapping

from enginery.bundle.gate import Passed
from enginery.bundle.licences import DATA, LICENCE, WEIGHTS, about_model, licence_of, terms_of
from enginery.bundle.triton import BACKENDS
from enginery.core.params.all import Params
from enginery.core.params.model import NO_SCORES
from enginery.core.runtimes import RUNTIMES
from enginery.core.tasks import CLASSIFICATION
from enginery.data.feeds import BATCH
from enginery.engine.description import where
from enginery.engine.folder import REPRODUCE
from enginery.engine.record import EngineRecord
from enginery.engine.tools import installed_version
from enginery.graph.files import data_of
from enginery.speed.records import ENGINE, RUNS_FOR_P99

MEASURED_BY = {
    "openvino": "OpenVINO's own tool", "onnxruntime": "a bare loop",
    "tensorrt": "NVIDIA's own tool", "tensorrt_rtx": "NVIDIA's own tool",
}  # fmt: skip
CPP_LIBRARIES = {"tensorrt": "nvinfer", "tensorrt_rtx": "tensorrt_rtx"}


def facts_of(passed: Passed, params: Params, model: str) -> dict[str, object]:
    record, measured = passed.record, passed.measured
    target, benchmark = record.target, measured.benchmark
    ranges = {axis: f"{one.min}..{one.max}" for axis, one in record.profile.ranges.items()}
    return {
        "model": model,
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
        "measured_on": f"{passed.machine.device_name}, {benchmark.threads} threads on {passed.machine.cores} cores",
        "example": has_example(record),
        "cpp": has_example(record) and RUNTIMES[target.runtime].is_tensorrt,
        "replays": benchmark.cuda_graph,
        "plugins": record.build.tensorrt.plugin_names if RUNTIMES[target.runtime].is_tensorrt else [],
        "rtx": target.runtime == "tensorrt_rtx",
        "cpp_library": CPP_LIBRARIES.get(target.runtime),
        "served_plugins": [f"/models/{model}/1/{name}" for name in record.build.tensorrt.plugin_names],
        "served": target.runtime in BACKENDS,
        "reproduce": f"{'engine/' if RUNTIMES[target.runtime].is_tensorrt else ''}{REPRODUCE}",
        "measured_by": MEASURED_BY[target.runtime],
        "sizes": record.profile.at("opt"),
        "shape_ranges": _shapes(record, ranges),
        "shape": _shapes(record, record.profile.at("opt") | {BATCH: "$batch"}),
        "weights": data_of(passed.onnx).name if data_of(passed.onnx).exists() else None,
        "requirements": requirements(record),
        **(example_facts(record) if has_example(record) else {}),
        "about_model": about_model(params),
        "about_weights": terms_of(params.weights.source, WEIGHTS),
        "about_data": terms_of(params.samples.source, DATA),
        "distributions": RUNTIMES[target.runtime].distributions,
        "licence_of": licence_of,
        "enginery_licence": LICENCE,
    }


def has_example(record: EngineRecord) -> bool:
    """Tell whether there is an example for this engine: only classifiers have one, with an image in and scores out."""
    inputs, outputs = record.interface.inputs, record.interface.outputs
    if record.preprocessing is None or record.scores == NO_SCORES or not len(inputs) == len(outputs) == 1:
        return False
    shape = outputs[0].shape
    return record.task == CLASSIFICATION and len(shape) == 2 and isinstance(shape[1], int)


def example_facts(record: EngineRecord) -> dict[str, object]:
    (source,), (target,), how = record.interface.inputs, record.interface.outputs, record.preprocessing
    assert how is not None, "has_example looked"
    return {"input": source.name, "output": target.name, "image": how.shape, "classes": target.shape[1]}


def _shapes(record: EngineRecord, sizes: Mapping[str, object]) -> str:
    """Write the shapes of all inputs as benchmark_app reads them."""
    shapes = {spec.name: [sizes.get(str(size), size) for size in spec.shape] for spec in record.interface.inputs}
    return ",".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in shapes.items())


def requirements(record: EngineRecord) -> list[str]:
    """Return what the example needs: the runtime in the engine's version, other packages in those tried here."""
    target = record.target
    distributions = RUNTIMES[target.runtime].distributions
    name = next(filter(installed_version, distributions), distributions[0])
    others = ["numpy", "pillow", *(["cuda-bindings"] if RUNTIMES[target.runtime].is_tensorrt else [])]
    tried = [f"{other}=={version}" if (version := installed_version(other)) else other for other in others]
    return [f"{name}=={target.runtime_version}", *tried]

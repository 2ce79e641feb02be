"""What the pages of a bundle say, gathered from the engine's record and the report."""

import importlib.metadata

from enginery.bundle.gate import Passed
from enginery.bundle.licences import DISTRIBUTIONS, about_data, about_weights, licence_of, runtime_licence
from enginery.bundle.triton import BACKENDS
from enginery.core.params import Params
from enginery.core.records import ENGINE, EngineRecord
from enginery.inspection import where
from enginery.reproduce import TRTEXEC

TITLES = {
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
    "tensorrt": "TensorRT",
    "tensorrt_rtx": "TensorRT for RTX",
}
CPP_LIBRARIES = {"tensorrt": "nvinfer", "tensorrt_rtx": "tensorrt_rtx"}


def facts_of(passed: Passed, params: Params, model: str) -> dict[str, object]:
    record, measured = passed.record, passed.measured
    target, profile, benchmark = record.target, record.profile, measured.benchmark
    (spec,) = record.inputs
    image = ",".join(map(str, spec.shape[1:]))
    return {
        "model": model,
        "precision": record.precision,
        "title": TITLES[target.runtime],
        "library": target.runtime,
        "version": target.runtime_version,
        "or_newer": target.or_newer,
        "device": target.device,
        "runs_on": where(target),
        "fewest": profile.min,
        "tuned": profile.opt,
        "most": profile.max,
        "bytes": record.bytes,
        "executed": ", ".join(f"{count} {name}" for name, count in record.executed.items()) or "not known",
        "validation": measured.validation,
        "latencies": [latency for latency in benchmark.latencies if latency.contender == ENGINE],
        "ratios": benchmark.ratios,
        "measured_on": f"{passed.machine.device_name}, {benchmark.threads} threads on {passed.machine.cores} cores",
        "cpp": target.runtime in TRTEXEC,
        "cpp_library": CPP_LIBRARIES.get(target.runtime),
        "served": target.runtime in BACKENDS,
        "reproduces": target.runtime in TRTEXEC or target.runtime == "openvino",
        "bounded": f"{spec.name}[{profile.min}..{profile.max},{image}]",
        "one_shape": f"{spec.name}[$batch,{image}]",
        "requirements": requirements(record),
        **licences(record, params),
    }


def requirements(record: EngineRecord) -> list[str]:
    """The runtime in the version that the engine is bound to, the others as they were tried."""
    target = record.target
    name = next((name for name in DISTRIBUTIONS[target.runtime] if _version(name)), DISTRIBUTIONS[target.runtime][0])
    others = ["numpy", "pillow", *(["cuda-bindings"] if target.runtime in TRTEXEC else [])]
    tried = [f"{other}=={_version(other)}" if _version(other) else other for other in others]
    return [f"{name}=={target.runtime_version}", *tried]


def licences(record: EngineRecord, params: Params) -> dict[str, object]:
    return {
        "about_model": f"{params.model.name} of torchvision: {licence_of('torchvision')}",
        "about_weights": about_weights(params),
        "about_data": about_data(params),
        "runtime_licence": runtime_licence(record.target.runtime),
        "cuda_licence": licence_of("cuda-bindings"),
        "numpy_licence": licence_of("numpy"),
        "pillow_licence": licence_of("pillow"),
        "enginery_licence": licence_of("enginery"),
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

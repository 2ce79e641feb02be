"""ONNX Runtime: the CUDA provider where there is a GPU, the CPU provider elsewhere.

Its "engine" is the graph after its optimizer, which fuses for the provider and processor at hand.
"""

import ctypes
import importlib.metadata
import importlib.util
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginery.bf16_twin import float32_twin, uses_bf16
from enginery.core.errors import EngineryError
from enginery.core.params import Profile
from enginery.core.records import Layer, TensorSpec
from enginery.graphs import load_graph
from enginery.runtimes import Arrays

GRAPH = "engine.onnx"
PRECISIONS = {
    "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8",
    "float8e4m3fn": "fp8", "float8e5m2": "fp8",
}  # fmt: skip
DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64", "tensor(int32)": "int32"}
COMPUTE_WORDS = ("Conv", "Gemm", "MatMul", "Attention")
DISTRIBUTIONS = ("onnxruntime-gpu", "onnxruntime")


def missing() -> str | None:
    if importlib.util.find_spec("onnxruntime") is None:
        return "ONNX Runtime is not installed: pip install onnxruntime-gpu (or onnxruntime, for the CPU alone)"
    return None


def version() -> str:
    for distribution in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise EngineryError("ONNX Runtime is imported from outside the environment: install onnxruntime-gpu into it")


def device() -> str:
    """CUDA counts only where a GPU's driver answers: the provider is also listed on machines without one."""
    import onnxruntime

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    return "cuda" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu"


def compile(onnx: Path, folder: Path, profile: Profile) -> list[Layer]:
    """The batch stays dynamic; `profile` is enforced when an engine is fed."""
    try:
        try:
            _optimize(onnx.read_bytes(), folder)
        except Exception:
            model = load_graph(onnx)
            if not uses_bf16(model):
                raise
            # Neither provider has bfloat16 kernels for all: the CPU's has none for Conv, CUDA's none for MaxPool.
            # Execute in float32 what the graph means; the layers will say fp32.
            _optimize(float32_twin(model).SerializeToString(), folder)
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        raise EngineryError(f"ONNX Runtime cannot compile {onnx}: {str(error).strip().splitlines()[0]}") from None
    return _executed(folder, profile)


def load(folder: Path, threads: int) -> "OnnxRuntimeSession":
    import onnxruntime

    options = _options(threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # that was `compile`
    return OnnxRuntimeSession(_session(str(folder / GRAPH), options))


class OnnxRuntimeSession:
    def __init__(self, session: Any) -> None:
        self._session = session
        self.inputs = tuple(_spec(tensor) for tensor in session.get_inputs())
        self.outputs = tuple(_spec(tensor) for tensor in session.get_outputs())

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        names = [spec.name for spec in self.outputs]
        return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        """Feeds are placed on the device once; outputs stay there."""
        place = "cuda" if device() == "cuda" else "cpu"
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_ortvalue_input(name, _on_device(array, place))
        for spec in self.outputs:
            binding.bind_output(spec.name, place)

        def call() -> None:
            self._session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return call

    def close(self) -> None:
        del self._session


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _optimize(model: bytes, folder: Path) -> None:
    import onnxruntime

    options = _options(threads=0)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(folder / GRAPH)
    _session(model, options)


def _session(model: bytes | str, options: Any) -> Any:
    import onnxruntime

    if device() == "cpu":
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    onnxruntime.preload_dlls()  # finds the CUDA libraries that torch's wheels brought
    session = onnxruntime.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
    if "CUDAExecutionProvider" not in session.get_providers():
        raise EngineryError("ONNX Runtime's CUDA provider did not load: are CUDA 13 and cuDNN 9 installed?")
    return session


def _on_device(array: NDArray[np.generic], place: str) -> Any:
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), place, 0)


def _executed(folder: Path, profile: Profile) -> list[Layer]:
    """What a profiled inference says was run: the operator, its types and the provider."""
    import onnxruntime

    options = _options(threads=0)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as scratch:
        options.profile_file_prefix = str(Path(scratch) / "profile")
        session = _session(str(folder / GRAPH), options)
        feeds = {}
        for tensor in session.get_inputs():
            shape = [size if isinstance(size, int) else profile.min for size in tensor.shape]
            feeds[tensor.name] = np.zeros(shape, DTYPES[tensor.type])
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    return [_layer(event["name"].removesuffix("_kernel_time"), event["args"]) for event in ran]


def _layer(name: str, ran: dict[str, Any]) -> Layer:
    kind = ran["op_name"]
    first_input = next(iter(ran.get("input_type_shape") or [{}]))
    element = next(iter(first_input), "none")
    return Layer(
        name=name,
        kind=kind,
        precision=PRECISIONS.get(element, element),
        computes=any(word in kind for word in COMPUTE_WORDS),
    )


def _spec(tensor: Any) -> TensorSpec:
    shape = tuple(size if isinstance(size, int) else -1 for size in tensor.shape)
    return TensorSpec(name=tensor.name, dtype=DTYPES[tensor.type], shape=shape)

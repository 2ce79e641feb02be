"""ONNX Runtime: the CUDA provider where there is a GPU, the CPU provider elsewhere.

Its "engine" is the graph after its optimizer, which fuses for the provider and processor at hand.
"""

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, load_model, load_model_from_string

from enginery.core.errors import EngineryError
from enginery.core.params.build import BuildParams
from enginery.core.params.inference import InferenceParams
from enginery.core.runtimes import RUNTIMES
from enginery.engine.gpu.cuda import Stream
from enginery.engine.gpu.session import DeviceSession, Shape
from enginery.engine.record import Layer, LayerTime
from enginery.engine.runtimes.layer_times import WARM_UP, median_times
from enginery.engine.runtimes.protocol import Arrays, Session
from enginery.graph.bf16_twin import float32_twin, uses_bf16
from enginery.graph.interface import Blueprint, Interface
from enginery.graph.onnx_file import load_graph

FACTS = RUNTIMES["onnxruntime"]
GRAPH = "engine.onnx"
RAN = "_kernel_time"  # how the profile ends the name of a node that it ran
PRECISIONS = {
    "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8",
    "float8e4m3fn": "fp8", "float8e5m2": "fp8",
}  # fmt: skip
COMPUTE_WORDS = ("Conv", "Gemm", "MatMul", "Attention")
CHANNELS_LAST = {"prefer_nhwc": "1"}  # NVIDIA's kernels want them so, and are up to twice as fast
FUSED_BIASES = {"fuse_conv_bias": "1"}  # else kernels of their own add them, which take up to a third of the whole
NOT_ALL_ON_GPU = "cannot use the graph capture feature"


class ONNXRuntime:
    """Optimize graphs and run them, on the GPU where there is one."""

    def missing(self) -> str | None:
        if importlib.util.find_spec("onnxruntime") is None:
            return f"{FACTS.title} is not installed: {FACTS.install}"
        return None

    def version(self) -> str:
        for distribution in FACTS.distributions:
            try:
                return importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
        raise EngineryError("ONNX Runtime is imported from outside the environment: install onnxruntime-gpu into it")

    def device(self) -> str:
        return _device()

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Sequence[Layer]:
        """What varies stays dynamic; the profile is enforced when an engine is fed."""
        if _device() == "cuda":
            _require_known_sizes(blueprint)
        try:
            try:
                _optimize(onnx.read_bytes(), folder, blueprint.build)
            except Exception:
                model = load_graph(onnx)
                if not uses_bf16(model):
                    raise
                # Neither provider has bfloat16 kernels for all: the CPU's has none for Conv, CUDA's none for MaxPool.
                # Execute in float32 what the graph means; the layers will say fp32.
                _optimize(float32_twin(model).SerializeToString(), folder, blueprint.build)
            return _executed(folder, blueprint)
        except Exception as error:  # ONNX Runtime's own exceptions share no base class
            raise EngineryError(f"ONNX Runtime cannot compile {onnx}: {str(error).strip().splitlines()[0]}") from None

    def load(self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int) -> Sequence[Session]:
        import onnxruntime

        options = _options(inference.threads)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # that was `compile`
        if _device() == "cpu":
            session = _session(str(folder / GRAPH), options, blueprint.build)
            return [CpuSession(session) for _ in range(requests)]
        return [_on_gpu(folder, blueprint, inference, options) for _ in range(requests)]

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """On a GPU, the profile tells how long the launch of a kernel takes: here that includes its execution."""
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # read when the process first uses CUDA
        with _profiled(folder, blueprint.build, inference.threads) as session:
            for _ in range(WARM_UP + calls):
                session.run(None, dict(feeds))
            ran = _nodes_by_call(session)[WARM_UP:]
        told = [[(_name(node), node["dur"] / 1000) for node in nodes] for nodes in ran]
        return median_times([_layer(node, blueprint.build.tf32) for node in ran[0]], told)


def _on_gpu(folder: Path, blueprint: Blueprint, inference: InferenceParams, options: Any) -> DeviceSession:
    """Replayed by ONNX Runtime itself, which knows whether it can: not if it places a node on the CPU."""
    stream, replays = Stream(), inference.cuda_graph
    try:
        session = _session(str(folder / GRAPH), options, blueprint.build, stream, replays)
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        if NOT_ALL_ON_GPU not in str(error):
            raise
        replays = False
        session = _session(str(folder / GRAPH), options, blueprint.build, stream)
    executor = Executor(session, blueprint.interface, replays)
    return DeviceSession(stream, executor, blueprint, replay=False)


def _require_known_sizes(blueprint: Blueprint) -> None:
    """On a GPU we bind the memory of each output, and ONNX Runtime does not say how much that takes."""
    for spec in blueprint.interface.outputs:
        for axis, size in enumerate(spec.shape):
            if isinstance(size, str) and size not in blueprint.build.profile.ranges:
                raise EngineryError(
                    f"ONNX Runtime on a GPU must be told how large output {spec.name} is, and its size '{size}' at "
                    f"axis {axis} is known from a run alone: set build.profile.height and width to null, "
                    "or take TensorRT"
                )


def _device() -> str:
    """CUDA counts only where a GPU's driver answers: the provider is also listed on machines without one."""
    import onnxruntime

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    return "cuda" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu"


class CpuSession:
    replays = False

    def __init__(self, session: Any) -> None:
        self._session = session
        self._outputs = [tensor.name for tensor in session.get_outputs()]

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        return dict(zip(self._outputs, self._session.run(self._outputs, dict(feeds)), strict=True))

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        return lambda: self._session.run_with_iobinding(binding)

    def close(self) -> None:
        del self._session


class Executor:
    """ONNX Runtime between a stream's copies; it must not wait for what it puts there."""

    def __init__(self, session: Any, interface: Interface, replays: bool) -> None:
        self.replays = replays
        self._session, self._binding, self._options = session, session.io_binding(), _run_options(graph=None)
        self._interface = interface
        self._shapes: dict[str, Shape] = {}
        self._graphs: dict[tuple[int, ...], int] = {}

    def announce(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        sizes = self._interface.sizes(shapes)
        produced = {spec.name: spec.at(sizes) for spec in self._interface.outputs}
        self._shapes = {**shapes, **produced}
        return produced

    def place(self, addresses: Mapping[str, int]) -> None:
        shapes = self._shapes
        graph = self._graphs.setdefault(tuple(self._interface.sizes(shapes).values()), len(self._graphs) + 1)
        self._options = _run_options(graph if self.replays else None)
        self._binding = self._session.io_binding()
        for spec in self._interface.inputs:
            place = ("cuda", 0, np.dtype(spec.dtype), shapes[spec.name], addresses[spec.name])
            self._binding.bind_input(spec.name, *place)
        for spec in self._interface.outputs:
            place = ("cuda", 0, np.dtype(spec.dtype), shapes[spec.name], addresses[spec.name])
            self._binding.bind_output(spec.name, *place)

    def enqueue(self, stream: int) -> None:
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:  # ONNX Runtime's own exceptions share no base class
            raise EngineryError(f"ONNX Runtime cannot run the engine: {str(error).strip().splitlines()[0]}") from None

    def close(self) -> None:
        self._session = self._binding = None


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised as well
    return options


def _run_options(graph: int | None) -> Any:
    """`graph` numbers the captured graph to replay; each shape has one."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    if graph is not None:
        options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def _optimize(model: bytes, folder: Path, build: BuildParams) -> None:
    import onnxruntime

    options = _options(threads=0)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(folder / GRAPH)
    _session(model, options, build)


def _session(
    model: bytes | str, options: Any, build: BuildParams, stream: Stream | None = None, replays: bool = False
) -> Any:
    import onnxruntime

    if _device() == "cpu":
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    onnxruntime.preload_dlls()  # finds the CUDA libraries that torch's wheels brought
    settings = {"use_tf32": str(int(build.tf32)), "enable_cuda_graph": str(int(replays)), **convolutions(model)}
    if stream:
        settings["user_compute_stream"] = str(stream.handle)
    session = onnxruntime.InferenceSession(model, options, providers=[("CUDAExecutionProvider", settings)])
    if "CUDAExecutionProvider" not in session.get_providers():
        raise EngineryError("ONNX Runtime's CUDA provider did not load: are CUDA 13 and cuDNN 9 installed?")
    return session


def convolutions(model: bytes | str) -> dict[str, str]:
    """How the CUDA provider is to run them, as far as it can: see docs/measurements.md.

    Quantized weights it does not lay out anew, and then refuses channels last. Fused float16 kernels it compiles for
    each shape; a CUDA graph of them that was replayed after another shape had been run never came back.
    """
    graph = (load_model_from_string(model) if isinstance(model, bytes) else load_model(model)).graph
    if any(node.op_type == "DequantizeLinear" for node in graph.node):
        return {}
    halves = any(tensor.data_type == TensorProto.FLOAT16 for tensor in graph.initializer)
    return CHANNELS_LAST if halves else CHANNELS_LAST | FUSED_BIASES


def _executed(folder: Path, blueprint: Blueprint) -> list[Layer]:
    """What a profiled inference says was run: the operator, its types and the provider."""
    inputs, build = blueprint.interface.inputs, blueprint.build
    smallest = build.profile.at("min")
    with _profiled(folder, build, threads=0) as session:
        session.run(None, {spec.name: np.zeros(spec.at(smallest), spec.dtype) for spec in inputs})
        (ran,) = _nodes_by_call(session)
    return [_layer(node, build.tf32) for node in ran]


@contextmanager
def _profiled(folder: Path, build: BuildParams, threads: int) -> Iterator[Any]:
    """A session of its own, which writes down what it runs."""
    import onnxruntime

    options = _options(threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as scratch:
        options.profile_file_prefix = str(Path(scratch) / "profile")
        yield _session(str(folder / GRAPH), options, build)


def _nodes_by_call(session: Any) -> list[list[dict[str, Any]]]:
    """The nodes that each call ran; this ends the profile."""
    calls: list[list[dict[str, Any]]] = [[]]
    for event in json.loads(Path(session.end_profiling()).read_text()):
        if event["name"] == "model_run":  # written after the nodes of a call
            calls.append([])
        elif event.get("cat") == "Node" and event["name"].endswith(RAN):
            calls[-1].append(event)
    return calls[:-1]


def _name(node: dict[str, Any]) -> str:
    return str(node["name"]).removesuffix(RAN)


def _layer(node: dict[str, Any], tf32: bool) -> Layer:
    """float32 on a GPU that may use TF32 is called so: ONNX Runtime does not say which kernels did."""
    ran = node["args"]
    kind = ran["op_name"]
    first_input = next(iter(ran.get("input_type_shape") or [{}]))
    element = next(iter(first_input), "none")
    precision, computes = PRECISIONS.get(element, element), any(word in kind for word in COMPUTE_WORDS)
    if precision == "fp32" and computes and tf32 and ran.get("provider") == "CUDAExecutionProvider":
        precision = "tf32"
    return Layer(name=_name(node), kind=kind, precision=precision, computes=computes)

"""ONNX Runtime, with CUDA where there is a GPU. The engine is the graph after its optimizer, which fuses for the device
at hand. On a GPU, each layout of images is tried, as TensorRT tries kernels: no rule would do."""

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, TensorProto, helper, load_model, save_model

from enginewright.core.errors import CompilerError, EnginewrightError
from enginewright.core.facts import RUNTIMES, not_installed
from enginewright.core.files import scratch_folder
from enginewright.core.installing import installed_version
from enginewright.core.params.build import BuildParams, InferenceParams
from enginewright.core.process import run_apart
from enginewright.core.text import first_line
from enginewright.engine.gpu import Stream
from enginewright.engine.record import Layer, LayerTime
from enginewright.engine.runtimes.gpu_session import DeviceSession, Growing, Shape
from enginewright.engine.runtimes.runtime import WARM_UP, Arrays, Compiled, Session, median_times
from enginewright.graph.as_written import twin_of
from enginewright.graph.files import data_of, graph_bytes
from enginewright.graph.interface import Blueprint, Interface
from enginewright.graph.onnx_file import load_graph, save_graph

GRAPH = "engine.onnx"
Layout = Mapping[str, str]  # options of the provider
CHANNELS_FIRST: Layout = {}
CHANNELS_LAST: Layout = {"prefer_nhwc": "1"}
LAST_WITH_FUSED_BIASES: Layout = {**CHANNELS_LAST, "fuse_conv_bias": "1"}  # with channels first, answers were wrong
LAYOUTS = (CHANNELS_FIRST, CHANNELS_LAST, LAST_WITH_FUSED_BIASES)
CONVOLUTIONS = {"Conv", "ConvTranspose"}
OPTION = "CUDAExecutionProvider."  # begins the names by which an engine's metadata hold its layout
TRIAL_WARM_UP, TRIAL_CALLS = 10, 50
LONGEST = 300  # seconds of a trial: the three trials of a graph took 17 at most, for 18 graphs
LEAST_GAIN = 0.97  # is how much of the time of channels first another layout may take: a smaller gain is noise
MOST_DIFFERENCE = 0.1  # is allowed to the answers of channels first: a trained network has less by TF32 and halves
MOST_SHAPES = 8  # that have a session at a time, each with the weights in the memory of the GPU,
ROOM = 4 << 30  # as long as they take no more bytes than this
RAN = "_kernel_time"  # in the profile, the end of the name of each node that was run
PRECISION_OF_TYPE = {
    "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8",
    "float8e4m3fn": "fp8", "float8e5m2": "fp8",
}  # fmt: skip
PRECISION_OF_BITS = {4: "int4", 8: "int8"}  # of the weights of a product that reads floats beside them
COMPUTE_WORDS = ("Conv", "Gemm", "MatMul", "Attention")


class ONNXRuntime:
    def missing(self) -> str | None:
        return not_installed("onnxruntime")

    def version(self) -> str:
        if version := installed_version(*RUNTIMES["onnxruntime"].distributions):
            return version
        raise EnginewrightError("ONNX Runtime is outside the environment: install onnxruntime-gpu into it")

    def device(self) -> str:
        return device()

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Compiled:
        """Optimize the graph, whose sizes stay dynamic: the profile is enforced when the engine is fed."""
        build, given, is_on_gpu = blueprint.build, onnx, device() == "cuda"
        if is_on_gpu:
            require_known_sizes(blueprint)
        try:
            with scratch_folder() as scratch:
                try:
                    optimize(given, folder, build)
                except Exception:
                    # Both providers lack bfloat16 kernels, the CPU's for Conv, CUDA's for MaxPool, and NVIDIA's blocks.
                    # A graph of the same meaning in float32 is built instead, and its layers will say fp32.
                    if (twin := twin_of(load_graph(given))) is None:
                        raise
                    save_graph(twin, given := scratch / "twin.onnx")
                    optimize(given, folder, build)
                if is_on_gpu and not blueprint.is_probe:
                    graph = load_model(given, load_external_data=False).graph
                    if has_choice(graph) and (layout := fastest_layout(partial(try_in_own_process, given, blueprint))):
                        optimize(given, folder, build, layout)
            example = blueprint.example_of(build.profile.batch.min)
            with _profiled(folder, build, threads=0) as session:  # the layers are those that an inference runs
                session.run([spec.name for spec in blueprint.interface.outputs], dict(example))
                (ran,) = _nodes_by_call(session)
            return Compiled(_layers(ran, folder, build.tf32), build)
        except Exception as error:  # ONNX Runtime's own exceptions share no base class
            raise CompilerError(f"ONNX Runtime cannot compile {onnx}: {first_line(error)}") from None

    def load(self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int) -> Sequence[Session]:
        options = options_for(inference.threads)
        if device() == "cpu":
            session = open_session(folder / GRAPH, options, blueprint.build)
            outputs = [spec.name for spec in blueprint.interface.outputs]
            return [CpuSession(session, outputs) for _ in range(requests)]
        return [open_on_gpu(folder / GRAPH, blueprint, options, inference.cuda_graph) for _ in range(requests)]

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """Profile the calls. On a GPU, the launch of a kernel is timed, which is made to include its execution."""
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # CUDA reads it when the process first uses it
        with _profiled(folder, blueprint.build, inference.threads) as session:
            for _ in range(WARM_UP + calls):
                session.run([spec.name for spec in blueprint.interface.outputs], dict(feeds))
            ran = _nodes_by_call(session)[WARM_UP:]
        times = [[(node["name"], node["dur"] / 1000) for node in nodes] for nodes in ran]
        return median_times(_layers(ran[0], folder, blueprint.build.tf32), times)


class CpuSession:
    replays = False

    def __init__(self, session: Any, outputs: Sequence[str]) -> None:
        self._session, self._outputs = session, outputs

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


@contextmanager
def _profiled(folder: Path, build: BuildParams, threads: int) -> Iterator[Any]:
    options = options_for(threads)
    options.enable_profiling = True
    with scratch_folder() as scratch:
        options.profile_file_prefix = str(scratch / "profile")
        yield open_session(folder / GRAPH, options, build)


def _nodes_by_call(session: Any) -> list[list[dict[str, Any]]]:
    """End the profile, and return the nodes that each call ran."""
    calls: list[list[dict[str, Any]]] = [[]]
    for event in json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")):
        if event["name"] == "model_run":  # follows the nodes of a call
            calls.append([])
        elif event.get("cat") == "Node" and event["name"].endswith(RAN):
            calls[-1].append(event | {"name": event["name"].removesuffix(RAN)})
    return calls[:-1]


def _layers(ran: Sequence[dict[str, Any]], folder: Path, tf32: bool) -> list[Layer]:
    nodes = load_model(folder / GRAPH, load_external_data=False).graph.node
    products = {node.name: node.attribute for node in nodes if node.op_type == "MatMulNBits"}
    bits = {name: one.i for name, attributes in products.items() for one in attributes if one.name == "bits"}
    return [_layer(node, PRECISION_OF_BITS.get(bits.get(node["name"], 0)), tf32) for node in ran]


def _layer(node: dict[str, Any], of_weights: str | None, tf32: bool) -> Layer:
    """Describe a node. Float32 counts as tf32 where a GPU may use it: ONNX Runtime does not say which kernels do."""
    ran = node["args"]
    kind = ran["op_name"]
    element = next(iter((ran.get("input_type_shape") or [{}])[0]), "none")  # of the first input
    precision = of_weights or PRECISION_OF_TYPE.get(element, element)
    computes = any(word in kind for word in COMPUTE_WORDS)
    if precision == "fp32" and computes and tf32 and ran.get("provider") == "CUDAExecutionProvider":
        precision = "tf32"
    return Layer(name=node["name"], kind=kind, precision=precision, computes=computes)


def device() -> str:
    """Return 'cuda' only where the driver is installed as well: the provider is listed on any machine."""
    import onnxruntime

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    return "cuda" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu"


def options_for(threads: int, optimize: bool = False) -> Any:  # only `compile` optimizes
    import onnxruntime

    options, level = onnxruntime.SessionOptions(), onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # nothing is printed: errors are raised as well
    return options


def optimize(model: Path, folder: Path, build: BuildParams, layout: Layout = CHANNELS_FIRST) -> None:
    options = options_for(threads=0, optimize=True)
    engine = folder / GRAPH
    options.optimized_model_filepath = str(engine)
    if data_of(model).exists():
        apart = "session.optimized_model_external_initializers_file_name"
        options.add_session_config_entry(apart, data_of(engine).name)
    open_session(model, options, build, layout)
    if layout:
        write_layout(engine, layout)


def open_session(model: Path, options: Any, build: BuildParams, layout: Layout = CHANNELS_FIRST) -> Any:
    import onnxruntime

    if device() == "cpu":
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    settings = _settings_for(load_model(model, load_external_data=False), options, build)
    return cuda_session(model, options, {**settings, **layout})


def _settings_for(model: ModelProto, options: Any, build: BuildParams) -> dict[str, str]:
    """Return what the CUDA provider is told of a graph, and change the options of its sessions if they must be told."""
    if rounds_to_int8(model.graph):
        # Prepared for kernels of int8, which the provider lacks, biases are dequantized on the CPU: none is replayed.
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return noted_settings(model, build)


def rounds_to_int8(graph: GraphProto) -> bool:
    """Tell whether activations are bytes. Weights of four bits have products of their own, which ONNX Runtime finds."""
    types = {tensor.data_type for tensor in graph.initializer}
    in_bytes = types & {TensorProto.INT8, TensorProto.UINT8} and not types & {TensorProto.INT4, TensorProto.UINT4}
    return bool(in_bytes) and any(node.op_type == "QuantizeLinear" for node in graph.node)


def noted_settings(model: ModelProto, build: BuildParams) -> dict[str, str]:
    """Return what an engine says of how it must be opened, and what its parameters say."""
    return {"use_tf32": str(int(build.tf32)), **layout_of(model)}


def write_layout(engine: Path, layout: Layout) -> None:
    model = load_model(engine, load_external_data=False)
    others = {entry.key: entry.value for entry in model.metadata_props if not entry.key.startswith(OPTION)}
    helper.set_model_props(model, others | {OPTION + name: value for name, value in layout.items()})
    save_model(model, engine)


def layout_of(model: ModelProto) -> Layout:
    """Return the layout that is noted in an engine. Other options of the provider are not taken from a file."""
    noted = {entry.key: entry.value for entry in model.metadata_props if entry.key.startswith(OPTION)}
    return next((one for one in LAYOUTS if {OPTION + name: value for name, value in one.items()} == noted), LAYOUTS[0])


def cuda_session(
    model: Path, options: Any, settings: dict[str, str], stream: Stream | None = None, replays: bool = False
) -> Any:
    import onnxruntime

    onnxruntime.preload_dlls()  # finds the CUDA libraries that torch's wheels installed
    settings = {**settings, "enable_cuda_graph": str(int(replays))}
    if stream:
        settings["user_compute_stream"] = str(stream.handle)
    session = onnxruntime.InferenceSession(model, options, providers=[("CUDAExecutionProvider", settings)])
    if "CUDAExecutionProvider" not in session.get_providers():
        raise EnginewrightError(
            "ONNX Runtime's CUDA provider did not load: are CUDA 13 and cuDNN 9 installed, and has the GPU memory left?"
        )
    return session


def require_known_sizes(blueprint: Blueprint) -> None:
    """Refuse an output of unknown size, as its memory is bound, and inputs that hold sizes, which stay on the host."""
    known = {size for spec in blueprint.interface.inputs for size in spec.shape}
    for spec in blueprint.interface.outputs:
        for axis, size in enumerate(spec.shape):
            if isinstance(size, str) and size not in known:
                raise EnginewrightError(
                    f"ONNX Runtime on a GPU must be told how large output {spec.name} is, and its size '{size}' at "
                    f"axis {axis} is known from a run alone: let only the batch vary in build.profile, or take TensorRT"
                )
    for spec in blueprint.interface.inputs:
        if spec.values:
            raise EnginewrightError(f"ONNX Runtime on a GPU takes no sizes, as in input {spec.name}: take TensorRT")


def has_choice(graph: GraphProto) -> bool:
    """Tell whether there are images to lay out. The provider refuses it for weights that are quantized."""
    read = {name for node in graph.node if node.op_type in CONVOLUTIONS for name in node.input}
    rounded = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return bool(read) and read.isdisjoint(rounded)


class LayoutTrial(NamedTuple):
    seconds: float
    answers: Arrays


def fastest_layout(try_out: Callable[[Layout], LayoutTrial]) -> Layout:
    """Return the layout that takes the least time, of those that the provider takes and that answer as the first."""
    trials: list[tuple[Layout, LayoutTrial]] = []
    for layout in LAYOUTS:
        try:
            trials.append((layout, try_out(layout)))
        except EnginewrightError as error:
            print(f"ONNX Runtime cannot be tried with {layout or 'channels first'}: {error}", file=sys.stderr)
            if not trials:  # there is nothing to compare with
                return CHANNELS_FIRST
    (chosen, first), *others = trials
    least = first.seconds * LEAST_GAIN
    for layout, trial in others:
        agrees = (_alike(np.atleast_1d(trial.answers[name]), np.atleast_1d(a)) for name, a in first.answers.items())
        if trial.seconds < least and all(agrees):
            chosen, least = layout, trial.seconds
    return chosen


def _alike(found: NDArray[Any], first: NDArray[Any]) -> bool:
    """Compare the answers to each sample by how much its numbers differ among each other, or those of most samples."""
    if not np.isfinite(first).all():
        return False
    rows = first.reshape(len(first), -1).astype(np.float64)
    spreads = np.linalg.norm(rows - rows.mean(axis=1 if rows.shape[1] > 1 else 0, keepdims=True), axis=1)
    differences = np.linalg.norm(found.reshape(rows.shape) - rows, axis=1)
    return bool((differences <= MOST_DIFFERENCE * np.maximum(spreads, np.median(spreads))).all())


def try_in_own_process(onnx: Path, blueprint: Blueprint, layout: Layout) -> LayoutTrial:
    """Try a layout where a kernel that crashes or hangs ends nothing else, and other sessions make none slower."""
    return run_apart("the trial", try_out, onnx, blueprint, layout, longest=LONGEST, quiet=True)


def try_out(onnx: Path, blueprint: Blueprint, layout: Layout) -> LayoutTrial:
    with scratch_folder() as folder:
        optimize(onnx, folder, blueprint.build, layout)
        with closing(open_on_gpu(folder / GRAPH, blueprint, options_for(threads=0), replays=True)) as session:
            return timed(session, blueprint)


def timed(session: DeviceSession, blueprint: Blueprint) -> LayoutTrial:
    """Call a session with as many samples as the engine is optimized for."""
    feeds = blueprint.example_of(blueprint.build.profile.batch.opt)
    answers, call = session.run(feeds), session.bind(feeds)
    seconds = [call() for _ in range(TRIAL_WARM_UP + TRIAL_CALLS)]
    return LayoutTrial(median(seconds[TRIAL_WARM_UP:]), answers)


def open_on_gpu(model: Path, blueprint: Blueprint, options: Any, replays: bool) -> DeviceSession:
    """Open a session. With `replays` it replays CUDA graphs by itself, unless a node is placed on the CPU."""
    stream, optimized = Stream(), load_model(model, load_external_data=False)
    convolves = any(node.op_type in CONVOLUTIONS for node in optimized.graph.node)
    most = max(1, min(MOST_SHAPES, ROOM // graph_bytes(model))) if convolves else None
    settings = _settings_for(optimized, options, blueprint.build)
    open_session = partial(cuda_session, model, options, settings, stream)
    try:
        first = open_session(replays)
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        if "cannot use the graph capture feature" not in str(error):
            raise
        first = open_session(replays := False)
    opened = model.stat()

    def another() -> Any:
        if not model.exists() or not os.path.samestat(model.stat(), opened):
            raise EnginewrightError(f"the engine in {model.parent} was built anew since it was opened: open it again")
        try:
            return open_session(replays)
        except Exception as error:
            why = first_line(error)
            raise EnginewrightError(f"ONNX Runtime cannot open the engine for one more shape: {why}") from None

    executor = ONNXRuntimeExecutor(first, another, blueprint.interface, replays, most)
    return DeviceSession(stream, executor, blueprint, replay=False)


class ONNXRuntimeExecutor:
    """Runs a graph between the copies of a stream, without waiting for its own work. Where there are convolutions, each
    shape has a session of its own: one session would look for kernels anew whenever the shape changes, for up to two
    seconds, and replay CUDA graphs that it captured before with kernels that are gone."""

    def __init__(
        self, first: Any, another: Callable[[], Any], interface: Interface, replays: bool, most_sessions: int | None
    ) -> None:
        """Open `another` session for each new shape, or with `most_sessions` None let the first one serve all."""
        self.replays = replays
        self._first, self._another, self._interface, self._most = first, another, interface, most_sessions
        self._sessions: dict[tuple[int, ...], Any] = {}  # by sizes, the last used one at the end
        self._shapes: dict[str, Shape] = {}
        self._graphs: dict[tuple[int, ...], int] = {}
        self._session: Any = None
        self._binding: Any = None

    def announce(self, shapes: Mapping[str, Shape], values: Arrays) -> dict[str, Shape]:
        produced = {spec.name: spec.at(self._interface.sizes(shapes)) for spec in self._interface.outputs}
        self._shapes = {**shapes, **produced}
        return produced

    def place(self, addresses: Mapping[str, int]) -> None:
        import onnxruntime

        sizes = tuple(self._interface.sizes(self._shapes).values())
        self._session = self._binding = None  # so that a session can be let go of
        self._session = self._first if self._most is None else self._session_at(sizes, self._most)
        self._options, self._binding = onnxruntime.RunOptions(), self._session.io_binding()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if self.replays:  # each shape has a captured graph of its own
            graph = self._graphs.setdefault(sizes, len(self._graphs) + 1)
            self._options.add_run_config_entry("gpu_graph_id", str(graph))
        places = [(self._binding.bind_input, spec) for spec in self._interface.inputs]
        for bind, spec in places + [(self._binding.bind_output, spec) for spec in self._interface.outputs]:
            bind(spec.name, "cuda", 0, np.dtype(spec.dtype), self._shapes[spec.name], addresses[spec.name])

    def _session_at(self, sizes: tuple[int, ...], most: int) -> Any:
        """Return the session of these sizes. If there are many, let the oldest go; if memory is short, all of them."""
        session, self._first = self._sessions.pop(sizes, None) or self._first, None
        while not session and len(self._sessions) >= most:
            del self._sessions[next(iter(self._sessions))]
        if not session:
            try:
                session = self._another()
            except EnginewrightError:
                if not self._sessions:
                    raise
                self._sessions.clear()
                session = self._another()
        self._sessions[sizes] = session
        return session

    def let_grow(self, outputs: Mapping[str, Growing]) -> None:
        """Do nothing: `require_known_sizes` refuses such outputs."""

    def enqueue(self, stream: int) -> None:
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:  # ONNX Runtime's own exceptions share no base class
            raise EnginewrightError(f"ONNX Runtime cannot run the engine: {first_line(error)}") from None

    def close(self) -> None:
        self._first = self._session = self._binding = None
        self._sessions.clear()

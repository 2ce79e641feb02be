"""TensorRT 10 and 11, and TensorRT for RTX, which shares their API and builds without a GPU."""

import ctypes
import importlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, get_args

import numpy as np

from enginery.core.errors import EngineryError
from enginery.core.files import sha256
from enginery.core.params.build import Bound, BuildParams, TensorRTParams
from enginery.core.params.inference import InferenceParams, WeightsOnGPU
from enginery.core.progress import Phases
from enginery.core.runtimes import RUNTIMES, not_installed
from enginery.core.text import file_size, first_few
from enginery.engine.folder import WEIGHTS, weights_of
from enginery.engine.gpu import cuda
from enginery.engine.gpu.device import find_gpu
from enginery.engine.gpu.inspector import layers_of
from enginery.engine.gpu.scratch import Scratch
from enginery.engine.gpu.session import DeviceSession, Growing, Shape
from enginery.engine.gpu.timing_cache import locked, read_timing_cache, set_aside, timing_cache_path, write_timing_cache
from enginery.engine.record import Layer, LayerTime
from enginery.engine.runtimes import Arrays
from enginery.engine.runtimes.layer_times import WARM_UP, CallTimes, median_times
from enginery.graph.files import graph_files
from enginery.graph.interface import Blueprint

PLAN = "engine.plan"
OLDEST = {"tensorrt": (10, 9), "tensorrt_rtx": (1, 2)}  # the oldest versions that this module is written for
MORE_MEMORY = "lower build.profile.batch.max, or end other programs that use the GPU"
ADVICE = {  # by patterns of TensorRT's messages
    r"out of memory|insufficient memory": f"The GPU's memory does not suffice: {MORE_MEMORY}",
    r"insufficient workspace|Could not find any implementation": (
        f"TensorRT also says so when memory does not suffice: raise build.tensorrt.workspace_mb, {MORE_MEMORY}"
    ),
    r"has no runners that implement it": (
        "The library reads this operator and has no kernel for it: end the model before it, or take another runtime"
    ),
    r"optimization profile|profile \d+ violate": "The limits are build.profile's",
    r"CHECK\((status == CUDA_SUCCESS|sm_vers_\.size\(\) == 1)\)": (
        "TensorRT for RTX says so where it builds without a GPU what needs one: build.tensorrt.weights: stripped and "
        "build.tensorrt.refit do"
    ),
}
LACKS_PRECISION = r"Cannot compile (for target|operation)|require hardware with \w+ support"
OTHER_GPUS = "Those GPUs cannot execute this precision: drop them from build.tensorrt.compute_capabilities"
NO_SUCH_PRECISION = "This GPU cannot execute this precision: delete its section of `precisions`, if you do not need it"
HAND_OUT_PLUGINS = ("getCreators", "getPluginCreators")  # what such a function may be called
NOT_THE_CAUSE = "CUDA driver version is insufficient"  # follows real errors on a machine that builds without a GPU
DAMAGED_CACHE = re.compile(r"deserialize timing cache|timing cache.*corrupt", re.IGNORECASE)
SOURCE = re.compile(r"\s*\bIn \S+ at \S+:\d+|\[\w+\.cpp:[^]]*\] ")  # a place in NVIDIA's sources: no use to a user
ERROR = "error: "
MOST_ERRORS, MOST_CHARACTERS = 3, 400
CHUNK = 1 << 26


class TensorRT:
    """Build and run plans with one of NVIDIA's two libraries."""

    def __init__(self, library: str) -> None:
        self._library, self._is_rtx, self._oldest = library, library == "tensorrt_rtx", OLDEST[library]
        self._title, self._install = RUNTIMES[library].title, RUNTIMES[library].install
        self._loaded: set[str] = set()  # the hashes of plugin libraries
        self._advice = ADVICE | {LACKS_PRECISION: OTHER_GPUS if self._is_rtx else NO_SUCH_PRECISION}

    def missing(self) -> str | None:
        if absent := not_installed(self._library):
            return absent
        try:
            found = self.version()
        except (ImportError, OSError) as error:
            return f"{self._title} cannot be loaded ({error}): {self._install}"
        if tuple(map(int, found.split(".")[:2])) >= self._oldest:
            return None
        oldest = ".".join(map(str, self._oldest))
        return f"{self._title} {found} is too old, Enginery is written for {oldest} and newer: {self._install}"

    def version(self) -> str:
        return str(self._trt().__version__)

    def device(self) -> str:
        return "cuda"

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Sequence[Layer]:
        """Build a strongly typed network: the graph says which operator runs in which type."""
        trt = self._trt()
        self._log.lines.clear()
        for path, name in zip(blueprint.build.tensorrt.plugins, blueprint.build.tensorrt.plugin_names, strict=True):
            shutil.copyfile(path, folder / name)  # an engine that needs them is of no use without
        if blueprint.build.tensorrt.is_stripped:  # likewise; the first file refers to the second by its name
            for file in graph_files(onnx):
                shutil.copyfile(file, folder / (WEIGHTS if file == onnx else file.name))
        builder = self._started(trt.Builder, folder, blueprint.build)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = self._parse(network, onnx, blueprint.build)
        config = self._configure(builder, blueprint)
        with self._timing_cache(config, blueprint.build):
            plan = self._build(builder, network, config)
        if plan is None:
            raise EngineryError(f"{self._title} cannot build {onnx}: {self._why()}")
        (folder / PLAN).write_bytes(plan)
        del parser, plan  # the parser only now, since it holds the network's weights
        gpu, targets = find_gpu(), blueprint.build.tensorrt.compute_capabilities
        runs_here = gpu is not None and (not self._is_rtx or gpu.capability in targets)
        return self._layers(folder, blueprint) if runs_here else []

    def load(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int
    ) -> Sequence[DeviceSession]:
        """Deserialize one engine; each request has a context and a stream of its own."""
        engine = self._opened(folder, blueprint, inference, requests)
        captures_itself = inference.cuda_graph and self._is_rtx
        replay = inference.cuda_graph and not captures_itself
        shares = inference.share_scratch and requests > 1
        scratch = Scratch(engine.device_memory_size_v2, requests) if shares else None
        contexts = (self._context(engine, inference.cuda_graph, scratch) for _ in range(requests))
        return [self._session(engine, context, blueprint, captures_itself, replay, scratch) for context in contexts]

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """Profile the calls. None replays a graph: each launches its kernels one by one and reports their times."""
        layers = [layer for layer in self._layers(folder, blueprint) if not layer.profile]  # that of the sizes to time
        engine = self._opened(folder, blueprint, inference)
        context, profiler = self._context(engine), _new_profiler(self._trt())
        context.profiler = profiler
        session = self._session(engine, context, blueprint)
        del context, engine  # only the session may hold them: it frees them in the right order
        with closing(session):
            call = session.bind(feeds)
            return median_times(layers, [profiler.times_of(call) for _ in range(WARM_UP + calls)][WARM_UP:])

    def refit(self, folder: Path, blueprint: Blueprint, onnx: Path, refitted: Path) -> None:
        """Write the plan with other weights into the folder `refitted`. One that has none stays as it is."""
        if blueprint.build.tensorrt.is_stripped:
            shutil.copyfile(folder / PLAN, refitted / PLAN)
            return
        trt, engine = self._trt(), self._deserialize(folder / PLAN, blueprint.build)
        self._refit(engine, onnx)
        settings = engine.create_serialization_config()
        settings.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
        if hasattr(trt.SerializationFlag, "INCLUDE_REFIT"):  # later than 10.9: the next weights can be put in as well
            settings.set_flag(trt.SerializationFlag.INCLUDE_REFIT)
        plan = engine.serialize_with_config(settings)
        if plan is None:
            raise EngineryError(f"{self._title} cannot write the engine with the weights of {onnx}: {self._why()}")
        (refitted / PLAN).write_bytes(plan)

    def _session(
        self,
        engine: Any,
        context: Any,
        blueprint: Blueprint,
        captures_itself: bool = False,
        replay: bool = False,
        scratch: Scratch | None = None,
    ) -> DeviceSession:
        stream = cuda.Stream()
        allocator = _new_allocator(self._trt())
        executor = _Executor(
            self._title, engine, context, blueprint, allocator, self._log, captures_itself, stream.handle
        )
        return DeviceSession(stream, executor, blueprint, replay, scratch)

    def _build(self, builder: Any, network: Any, config: Any) -> Any:
        """Build in another thread, because this one cannot be interrupted within the library. After an interrupt the
        build ends with its next step."""
        phases = Phases(f"building for {self._title}")
        monitor = config.progress_monitor = _new_monitor(self._trt(), phases)
        with closing(phases), ThreadPoolExecutor(1) as thread:
            building = thread.submit(builder.build_serialized_network, network, config)
            try:
                return building.result()
            except KeyboardInterrupt:
                monitor.interrupted = True
                raise

    def _started(self, kind: Any, folder: Path, build: BuildParams) -> Any:
        """Create a builder or a runtime. Both need the plugins registered that RoiAlign, DeformConv and other operators
        become: TensorRT does not do it by itself. To do it again changes nothing."""
        if not self._is_rtx:
            self._trt().init_libnvinfer_plugins(self._log, "")
        try:
            started = kind(self._log)
        except TypeError:  # the bindings raise it where the library returns nothing
            raise EngineryError(f"{self._title} does not start: {self._why()}") from None
        for name in build.tensorrt.plugin_names:  # only now, since their registry logs to the log of a builder
            self._load_plugins(folder / name)
        return started

    def _load_plugins(self, library: Path) -> None:
        """Register the plugins of a user's library. It either does that by itself when it is opened, or has a function
        that hands them to TensorRT, which refuses to register the same ones twice in a process."""
        if (content := sha256(library)) in self._loaded:
            return
        what = f"the plugin library {library.name} (build.tensorrt.plugins)"
        try:
            opened = ctypes.CDLL(str(library.resolve()))
        except OSError as error:
            raise EngineryError(f"{what} does not load: {error}") from None
        hands_out = any(hasattr(opened, function) for function in HAND_OUT_PLUGINS)
        if hands_out and not self._trt().get_plugin_registry().load_library(str(library.resolve())):
            raise EngineryError(f"{what} is refused by {self._title}: {self._why()}")
        self._loaded.add(content)

    def _parse(self, network: Any, onnx: Path, build: BuildParams) -> Any:
        trt = self._trt()
        parser = trt.OnnxParser(network, self._log)
        parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)  # the plugin would bind an engine to this version
        if build.tensorrt.plugins and hasattr(trt.OnnxParserFlag, "ENABLE_PLUGIN_OVERRIDE"):  # since 10.15
            # A user's plugin may take over an operator of ONNX, which ONNX Runtime can execute, too.
            parser.set_flag(trt.OnnxParserFlag.ENABLE_PLUGIN_OVERRIDE)
        if not parser.parse_from_file(str(onnx)):
            raise EngineryError(f"{self._title} cannot read {onnx}: {_errors_of(parser) or self._why()}")
        return parser

    def _configure(self, builder: Any, blueprint: Blueprint) -> Any:
        trt, build = self._trt(), blueprint.build
        options, config = build.tensorrt, builder.create_builder_config()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # so that the layers can be inspected
        config.builder_optimization_level = options.optimization_level
        if options.workspace_mb is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mb << 20)
        if not build.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        if options.tiling_optimization_level != "none":
            level = getattr(trt.TilingOptimizationLevel, options.tiling_optimization_level.upper())
            self._set(config, "tiling_optimization_level", level)
        if options.max_aux_streams is not None:
            self._set(config, "max_aux_streams", options.max_aux_streams)
        if self._is_rtx:
            config.num_compute_capabilities = len(options.compute_capabilities)
            for index, capability in enumerate(options.compute_capabilities):
                config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + capability.replace(".", "")), index)
        else:
            level = options.hardware_compatibility.upper()
            config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level)
            config.avg_timing_iterations = options.avg_timing_iterations
            if options.version_compatible:
                config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
        for flag in _weight_flags(options):
            config.set_flag(getattr(trt.BuilderFlag, flag))
        for number, sizes in enumerate(build.all_profiles):
            profile = builder.create_optimization_profile()
            for spec in blueprint.interface.inputs:
                ends = [sizes.at(bound) for bound in get_args(Bound)]
                if spec.values:
                    profile.set_shape_input(spec.name, *map(spec.values_at, ends))
                else:
                    profile.set_shape(spec.name, *map(spec.at, ends))
            if config.add_optimization_profile(profile) != number:
                place = f"profiles.{number - 1}" if number else "profile"
                raise EngineryError(f"{self._title} refuses build.{place} {sizes}: {self._why()}")
        return config

    def _set(self, config: Any, option: str, value: Any) -> None:
        """Set an option that TensorRT may refuse. It then keeps the value that it had, and says so in the log alone."""
        setattr(config, option, value)
        if getattr(config, option) != value:
            raise EngineryError(f"{self._title} {self.version()} refuses build.tensorrt.{option}: {self._why()}")

    @contextmanager
    def _timing_cache(self, config: Any, build: BuildParams) -> Iterator[None]:
        """Give the builder the timings of earlier builds on this machine, and add the ones that it measures."""
        gpu = find_gpu()
        if not build.tensorrt.timing_cache or self._is_rtx or gpu is None:
            yield
            return
        path: Path | None = None
        with _warning_only("read"):
            path = timing_cache_path(gpu.device_name, gpu.capability, gpu.driver, f"{self._library}-{self.version()}")
            with locked(path):
                known = self._read_cache(config, path)
                if known is not None and not config.set_timing_cache(known, ignore_mismatch=False):
                    print(f"{self._title} refuses the timings of earlier builds: {self._why()}", file=sys.stderr)
                    known = None
                if known is None:
                    config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
        yield
        with _warning_only("kept"):
            if path and (measured := config.get_timing_cache()):
                with locked(path):
                    others = self._read_cache(config, path)  # another build may have written since
                    if others is not None and not measured.combine(others, ignore_mismatch=False):
                        set_aside(path)
                    write_timing_cache(path, bytes(measured.serialize()))

    def _read_cache(self, config: Any, path: Path) -> Any:
        if not (content := read_timing_cache(path)):
            return None
        seen = len(self._log.lines)
        cache = config.create_timing_cache(content)
        if cache is None or any(DAMAGED_CACHE.search(line) for line in self._log.lines[seen:]):
            set_aside(path)
            return None
        return cache

    def _opened(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams | None = None, requests: int = 1
    ) -> Any:
        """Deserialize an engine, put in the weights that its plan lacks, and say how much of them the GPU holds."""
        options, engine = blueprint.build.tensorrt, self._deserialize(folder / PLAN, blueprint.build)
        if options.is_stripped:
            self._refit(engine, weights_of(folder))
        if options.streaming:
            scratches = 1 if inference and inference.share_scratch else requests
            self._share_weights(engine, inference.weights_on_gpu_mb if inference else "auto", scratches)
        return engine

    def _refit(self, engine: Any, onnx: Path) -> None:
        trt, what = self._trt(), f"{self._title} cannot take the weights of {onnx}"
        self._log.lines.clear()
        try:
            refitter = trt.Refitter(engine, self._log)
        except TypeError:  # as in _started
            raise EngineryError(f"{what}: {self._why()}") from None
        parser = trt.OnnxParserRefitter(refitter, self._log)  # it holds the weights until they are in the engine
        if not parser.refit_from_file(str(onnx)):
            raise EngineryError(f"{what}: {_errors_of(parser) or self._why()}")
        if not refitter.refit_cuda_engine():
            missing = refitter.get_missing_weights()
            raise EngineryError(f"{what}: {f'it lacks {first_few(missing)}' if missing else self._why()}")

    def _share_weights(self, engine: Any, wanted: WeightsOnGPU, scratches: int) -> None:
        """Say how many bytes of the weights stay on the GPU, which must be known before there is a context."""
        size = budget = engine.streamable_weights_size
        if wanted == "auto":  # TensorRT's own choice reaches Python in 32 bits, too few for what is to be streamed
            scratch = engine.device_memory_size_v2 + engine.weight_streaming_scratch_memory_size
            budget = cuda.free_memory() * 4 // 5 - scratches * scratch  # a fifth is for inputs, outputs and others
        elif wanted != "all":
            budget = wanted * 1_000_000
        budget = min(max(budget, 0), size)
        engine.weight_streaming_budget_v2 = budget
        if engine.weight_streaming_budget_v2 > budget:  # the bindings do not pass on whether it was accepted
            raise EngineryError(f"{self._title} refuses inference.weights_on_gpu_mb {wanted}: {self._why()}")
        if budget < size:
            held = f"{file_size(budget)} of {file_size(size)} of weights stay on the GPU"
            print(f"{held}, the others are streamed (inference.weights_on_gpu_mb)", file=sys.stderr)

    def _deserialize(self, plan: Path, build: BuildParams) -> Any:
        trt, title = self._trt(), self._title
        self._log.lines.clear()
        runtime = self._started(trt.Runtime, plan.parent, build)
        if not self._is_rtx and build.tensorrt.version_compatible:
            runtime.engine_host_code_allowed = True  # such a plan contains its own runtime; its hash has been checked
        with plan.open("rb") as file:
            try:
                reader = _reader(trt, file)
            except RuntimeError as error:  # the reader opens the driver, to copy weights to the GPU by itself
                raise EngineryError(f"{title} cannot load {plan}: no NVIDIA driver is installed ({error})") from None
            engine = runtime.deserialize_cuda_engine(reader)
        if engine is None:
            raise EngineryError(f"{title} cannot load {plan}: {self._why('Run `dvc repro` to build it again')}")
        return engine

    def _context(self, engine: Any, replay: bool = False, scratch: Scratch | None = None) -> Any:
        trt = self._trt()
        strategies = trt.ExecutionContextAllocationStrategy
        strategy = strategies.USER_MANAGED if scratch else strategies.STATIC
        if self._is_rtx:
            settings, kernels = engine.create_runtime_config(), trt.DynamicShapesKernelSpecializationStrategy
            # By default it starts with slower kernels, and compiles the right ones for a shape while it is being timed.
            settings.dynamic_shapes_kernel_specialization_strategy = kernels.EAGER
            settings.set_execution_context_allocation_strategy(strategy)
            if replay:
                settings.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            context = engine.create_execution_context(settings)
        else:
            context = engine.create_execution_context(strategy)
        if context is None:
            raise EngineryError(f"{self._title} cannot make the engine ready: {self._why()}")
        if scratch:
            context.set_device_memory(scratch.address, scratch.size)
        return context

    def _layers(self, folder: Path, blueprint: Blueprint) -> list[Layer]:
        """Inspect the layers of each profile at the sizes that it is tuned for: without sizes, the inspector hides
        types."""
        trt, engine = self._trt(), self._opened(folder, blueprint)
        found = []
        with closing(cuda.Stream()) as stream:
            for number, profile in enumerate(blueprint.build.all_profiles):
                context, inspector = self._context(engine), engine.create_engine_inspector()
                _set_profile(self._title, context, number, stream.handle, self._log)
                tuned = blueprint.interface.zeros(profile.at("opt"))  # they stay while the context reads from them
                for spec in blueprint.interface.inputs:
                    if spec.values:
                        context.set_tensor_address(spec.name, tuned[spec.name].ctypes.data)
                    else:
                        context.set_input_shape(spec.name, tuned[spec.name].shape)
                inspector.execution_context = context  # the context must outlive the next call
                found += layers_of(inspector.get_engine_information(trt.LayerInformationFormat.JSON), number)
            stream.synchronize()
        return found

    def _why(self, otherwise: str = "") -> str:
        """Return TensorRT's reason, and what to do about it."""
        reason = str(self._log.reason())
        found = [advice for words, advice in self._advice.items() if re.search(words, reason, re.IGNORECASE)]
        advice = found[0] if found else otherwise
        return f"{reason.rstrip('.')}. {advice}" if advice else reason

    @cached_property
    def _log(self) -> Any:
        """Create the log once for the process: the library keeps the first one that it is given."""
        return _new_log(self._trt())

    def _trt(self) -> Any:
        return importlib.import_module(self._library)


@contextmanager
def _warning_only(done: str) -> Iterator[None]:
    """Print what is wrong with the timing cache, and go on: it costs time, and never an engine."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        print(f"timings are not {done} (build.tensorrt.timing_cache): {error}", file=sys.stderr)


def _new_log(trt: Any) -> Any:
    class Log(trt.ILogger):  # type: ignore[misc]
        """Keeps warnings and errors: where TensorRT fails it returns None, and gives its reason to the log alone."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)  # pybind11 asks for this form instead of super()
            self.lines: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR, trt.ILogger.WARNING):
                self.lines.append(("" if severity == trt.ILogger.WARNING else ERROR) + text)

        def reason(self) -> str:
            """Return the errors in TensorRT's words, the cause first."""
            errors = [line.removeprefix(ERROR) for line in self.lines if line.startswith(ERROR)]
            causes = [_cause(error) for error in errors if NOT_THE_CAUSE not in error] or [_cause(e) for e in errors]
            return "; ".join(dict.fromkeys(causes[:MOST_ERRORS])) or "it gave no reason"

    return Log()


def _new_monitor(trt: Any, phases: Phases) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Passes on what the builder reports. An exception in a call from the library would end the process."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)  # pybind11 asks for this form instead of super()
            self.interrupted = False

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with suppress(Exception):
                phases.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with suppress(Exception):
                phases.step(phase_name, step)
            return not self.interrupted

        def phase_finish(self, phase_name: str) -> None:
            with suppress(Exception):
                phases.finish(phase_name)

    return Monitor()


def _new_profiler(trt: Any) -> Any:
    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)  # pybind11 asks for this form instead of super()
            self._times: list[tuple[str, float]] = []

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self._times.append((layer_name, ms))

        def times_of(self, call: Callable[[], object]) -> CallTimes:
            self._times = []
            call()
            return self._times

    return Profiler()


def _new_allocator(trt: Any) -> Any:
    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        """Hands out memory while TensorRT runs. The bindings would print an exception, and TensorRT would only say that
        there is no memory."""

        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)  # pybind11 asks for this form instead of super()
            self.outputs: Mapping[str, Growing] = {}
            self.error: EngineryError | None = None

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            try:
                return self.outputs[tensor_name].reserve(size)  # CUDA aligns all memory as TensorRT needs it
            except EngineryError as error:
                self.error = error
                return 0

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.outputs[tensor_name].shape = tuple(shape)

    return Allocator()


class _Executor:
    """Runs a plan on the addresses and the stream of a DeviceSession."""

    def __init__(
        self,
        title: str,
        engine: Any,
        context: Any,
        blueprint: Blueprint,
        allocator: Any,
        log: Any,
        replays: bool,
        stream: int,
    ) -> None:
        self.replays = replays
        self._title, self._engine, self._context, self._log = title, engine, context, log
        self._blueprint = blueprint
        self._allocator, self._stream = allocator, stream

    def announce(self, shapes: Mapping[str, Shape], values: Arrays) -> dict[str, Shape]:
        self._log.lines.clear()
        profile = _nearest_profile(self._blueprint, shapes, values)
        if profile != self._context.active_optimization_profile:  # before the shapes, which it forgets
            _set_profile(self._title, self._context, profile, self._stream, self._log)
        self.place({name: array.ctypes.data for name, array in values.items()})  # TensorRT reads these on the host
        for name, shape in shapes.items():
            if name not in values and not self._context.set_input_shape(name, shape):
                raise EngineryError(f"{self._title} refuses shape {shape} for input {name}: {self._log.reason()}")
        tensors = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        return {name: tuple(self._context.get_tensor_shape(name)) for name in tensors if name not in shapes}

    def place(self, addresses: Mapping[str, int]) -> None:
        for name, address in addresses.items():
            if not self._context.set_tensor_address(name, address):
                raise EngineryError(f"{self._title} refuses a buffer for {name}: {self._log.reason()}")

    def let_grow(self, outputs: Mapping[str, Growing]) -> None:
        self._allocator.outputs = outputs
        for name in outputs:
            if not self._context.set_output_allocator(name, self._allocator):
                raise EngineryError(f"{self._title} refuses a buffer for {name}: {self._log.reason()}")

    def enqueue(self, stream: int) -> None:
        self._allocator.error = None
        if not self._context.execute_async_v3(stream):
            raise self._allocator.error or EngineryError(f"{self._title} cannot run the engine: {self._log.reason()}")

    def close(self) -> None:
        self._context = self._engine = None  # the context must be freed before its engine


def _set_profile(title: str, context: Any, number: int, stream: int, log: Any) -> None:
    if not context.set_optimization_profile_async(number, stream):
        raise EngineryError(f"{title} refuses optimization profile {number} of the engine: {log.reason()}")


def _nearest_profile(blueprint: Blueprint, shapes: Mapping[str, Shape], values: Arrays) -> int:
    """Return the profile that contains the shapes and is tuned for the nearest ones, by the sum of the differences: the
    rule of Triton. Return the first one if none does, so that TensorRT refuses the shapes in its own words."""
    distances, inputs = {}, blueprint.interface.inputs
    axes = [axis for spec in inputs for axis in (*spec.shape, *spec.values)]
    given = [size for spec in inputs for size in (*shapes[spec.name], *np.ravel(values.get(spec.name, ())))]
    sizes = [(axis, int(size)) for axis, size in zip(axes, given, strict=True) if isinstance(axis, str)]
    for number, profile in enumerate(blueprint.build.all_profiles):
        if all(size in profile.ranges[axis] for axis, size in sizes):
            distances[number] = sum(abs(size - profile.ranges[axis].opt) for axis, size in sizes)
    return min(distances, key=distances.__getitem__, default=0)


def _reader(trt: Any, file: BinaryIO) -> Any:
    class Reader(trt.IStreamReaderV2):  # type: ignore[misc]
        """Reads piece by piece, so that a large plan is not held in memory beside the engine made of it."""

        def __init__(self) -> None:
            trt.IStreamReaderV2.__init__(self)

        def read(self, size: int, stream: int) -> bytes:
            return file.read(min(size, CHUNK))

        def seek(self, offset: int, whence: Any) -> bool:
            file.seek(offset, int(whence))
            return True

    return Reader()


def _weight_flags(options: TensorRTParams) -> list[str]:
    """Return the flags of the builder. NVIDIA warns that REFIT can lose the bias of a matrix product, which
    REFIT_IDENTICAL does not: it is for the weights of the build alone."""
    refit = "REFIT" if options.refit else "REFIT_IDENTICAL"
    flags = {"STRIP_PLAN": options.is_stripped, refit: options.is_stripped or options.refit}
    return [flag for flag, is_wanted in (flags | {"WEIGHT_STREAMING": options.streaming}).items() if is_wanted]


def _errors_of(parser: Any) -> str:
    return "; ".join(_sentence(parser.get_error(index)) for index in range(parser.num_errors))


def _sentence(error: Any) -> str:
    """Say in one line what the parser refuses, beginning with the node."""
    node = f"node {error.node_name()} ({error.node_operator()}): " if error.node_name() else ""
    if error.code().name == "UNSUPPORTED_NODE":  # the description itself may be a bare "false"
        node += "this operator is not supported: "
    return node + _cause(" ".join(line for line in error.desc().splitlines() if NOT_THE_CAUSE not in line))


def _cause(text: str) -> str:
    return " ".join(SOURCE.sub("", text).split())[:MOST_CHARACTERS]

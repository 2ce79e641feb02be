"""One of NVIDIA's two libraries: what its messages mean, what it calls while it works, its timings and its layers."""

import ctypes
import hashlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from platformdirs import user_cache_path

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES
from enginewright.core.files import new_file, sha256
from enginewright.core.params.build import BuildParams
from enginewright.core.progress import Phases
from enginewright.engine.gpu import require_memory
from enginewright.engine.record import UNKNOWN, Layer
from enginewright.engine.runtimes.gpu_session import Growing, Shape
from enginewright.engine.runtimes.runtime import Arrays, CallTimes
from enginewright.graph.interface import Blueprint

MORE_MEMORY = "lower build.profile.batch.max, or end other programs that use the GPU"
ADVICE = {  # by patterns of TensorRT's messages
    r"out ?of ?memory|insufficient memory": f"The GPU's memory does not suffice: {MORE_MEMORY}",
    r"insufficient workspace|Could not find any implementation": (
        f"TensorRT also says so when memory does not suffice: raise build.tensorrt.workspace_mb, {MORE_MEMORY}"
    ),
    r"has no runners that implement it": (
        "The library reads this operator and has no kernel for it: end the model before it, or take another runtime"
    ),
    r"libnvinfer_lean": (
        "A version-compatible plan contains that library, and not every package of TensorRT brings it: put it on the "
        "loader's path (LD_LIBRARY_PATH), or set build.tensorrt.version_compatible to false"
    ),
    r"TRT_(FP4|MXFP8)\w+.*Plugin not found": (
        "This version of TensorRT does not have this precision: install a later one, or delete its section of "
        "`precisions`"
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
ERROR = "error: "
NOT_THE_CAUSE = "CUDA driver version is insufficient"  # follows real errors on a machine that builds without a GPU
SOURCE = re.compile(r"\s*\bIn \S+ at \S+:\d+|\[\w+\.cpp:[^]]*\] ")  # a place in NVIDIA's sources: no use to a user


class Library:
    """The library of TensorRT or of TensorRT for RTX, which is imported where it is first used."""

    def __init__(self, name: str) -> None:
        self.name, self.is_rtx = name, name == "tensorrt_rtx"
        self.title, self.install = RUNTIMES[name].title, RUNTIMES[name].install
        self._loaded: set[str] = set()  # the hashes of plugin libraries

    @property
    def trt(self) -> Any:
        return importlib.import_module(self.name)

    def version(self) -> str:
        return str(self.trt.__version__)

    @cached_property
    def log(self) -> Any:
        """Create the log once for the process: the library keeps the first one that it is given."""
        return new_log(self.trt)

    def started(self, kind: Any, folder: Path, build: BuildParams) -> Any:
        """Create a builder or a runtime. Both need the plugins registered that RoiAlign, DeformConv and other operators
        become: TensorRT does not do it by itself. To do it again changes nothing."""
        if not self.is_rtx:
            require_memory(f"{self.title} starts")
            self.trt.init_libnvinfer_plugins(self.log, "")
        try:
            started = kind(self.log)
        except TypeError:  # the bindings raise it where the library returns nothing
            raise EnginewrightError(f"{self.title} does not start: {self.why()}") from None
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
            raise EnginewrightError(f"{what} does not load: {error}") from None
        hands_out = any(hasattr(opened, function) for function in ("getCreators", "getPluginCreators"))
        if hands_out and not self.trt.get_plugin_registry().load_library(str(library.resolve())):
            raise EnginewrightError(f"{what} is refused by {self.title}: {self.why()}")
        self._loaded.add(content)

    def why(self, otherwise: str = "") -> str:
        """Return the library's reason from its log, and what to do about it."""
        return self.with_advice(self.log.reason(), otherwise)

    def with_advice(self, reason: str, otherwise: str = "") -> str:
        known = ADVICE | {LACKS_PRECISION: OTHER_GPUS if self.is_rtx else NO_SUCH_PRECISION}
        found = [advice for words, advice in known.items() if re.search(words, reason, re.IGNORECASE)]
        advice = found[0] if found else otherwise
        return f"{reason.rstrip('.')}. {advice}" if advice else reason


def errors_of(parser: Any) -> str:
    """Say in one line what the parser refuses, beginning each error with the node."""
    sentences = []
    for error in map(parser.get_error, range(parser.num_errors)):
        node = f"node {error.node_name()} ({error.node_operator()}): " if error.node_name() else ""
        if error.code().name == "UNSUPPORTED_NODE":  # the description itself may be a bare "false"
            node += "this operator is not supported: "
        lines = (line for line in error.desc().splitlines() if NOT_THE_CAUSE not in line)
        sentences.append(node + _cause_in(" ".join(lines)))
    return "; ".join(sentences)


def _cause_in(text: str) -> str:
    """Return a message without the places in NVIDIA's sources, in one line and not too long."""
    return " ".join(SOURCE.sub("", text).split())[:400]


# TensorRT calls these objects while it works. Their base classes are known once one of the two libraries is imported.


def new_log(trt: Any) -> Any:
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
            causes = [error for error in errors if NOT_THE_CAUSE not in error] or errors
            return "; ".join(dict.fromkeys(map(_cause_in, causes[:3]))) or "it gave no reason"

    return Log()


def new_monitor(trt: Any, phases: Phases) -> Any:
    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        """Passes on what the builder reports. An exception in a call from the library would end the process."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)  # pybind11 asks for this form instead of super()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with suppress(Exception):
                phases.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with suppress(Exception):
                phases.step(phase_name, step)
            return True  # go on: to stop, the builder's process is ended

        def phase_finish(self, phase_name: str) -> None:
            with suppress(Exception):
                phases.finish(phase_name)

    return Monitor()


def new_profiler(trt: Any) -> Any:
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


def new_allocator(trt: Any) -> Any:
    class Allocator(trt.IOutputAllocator):  # type: ignore[misc]
        """Hands out memory while TensorRT runs. It never raises: the bindings would only print the exception."""

        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)  # pybind11 asks for this form instead of super()
            self.outputs: Mapping[str, Growing] = {}
            self.error: EnginewrightError | None = None

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            try:
                return self.outputs[tensor_name].reserve(size)  # CUDA aligns all memory as TensorRT needs it
            except EnginewrightError as error:
                self.error = error
                return 0

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.outputs[tensor_name].shape = tuple(shape)

    return Allocator()


class TensorRTExecutor:
    """Runs a plan on the addresses and the stream of a DeviceSession, in the profile that is nearest to the shapes."""

    def __init__(
        self, library: Library, engine: Any, context: Any, blueprint: Blueprint, stream: int, replays: bool
    ) -> None:
        self.replays = replays
        self._library, self._log, self._title = library, library.log, library.title
        self._engine, self._context, self._blueprint, self._stream = engine, context, blueprint, stream
        self._allocator = new_allocator(library.trt)

    def announce(self, shapes: Mapping[str, Shape], values: Arrays) -> dict[str, Shape]:
        self._log.lines.clear()
        profile = _nearest_profile(self._blueprint, shapes, values)
        if profile != self._context.active_optimization_profile:  # before the shapes, which it forgets
            set_profile(self._library, self._context, profile, self._stream)
        self.place({name: array.ctypes.data for name, array in values.items()})  # TensorRT reads these on the host
        for name, shape in shapes.items():
            if name not in values and not self._context.set_input_shape(name, shape):
                raise EnginewrightError(f"{self._title} refuses shape {shape} for input {name}: {self._log.reason()}")
        tensors = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        return {name: tuple(self._context.get_tensor_shape(name)) for name in tensors if name not in shapes}

    def place(self, addresses: Mapping[str, int]) -> None:
        for name, address in addresses.items():
            self._require_taken(name, self._context.set_tensor_address(name, address))

    def _require_taken(self, name: str, is_taken: bool) -> None:
        if not is_taken:
            raise EnginewrightError(f"{self._title} refuses a buffer for {name}: {self._log.reason()}")

    def let_grow(self, outputs: Mapping[str, Growing]) -> None:
        self._allocator.outputs = outputs
        for name in outputs:
            self._require_taken(name, self._context.set_output_allocator(name, self._allocator))

    def enqueue(self, stream: int) -> None:
        self._allocator.error = None
        if not self._context.execute_async_v3(stream):
            raise self._allocator.error or EnginewrightError(
                f"{self._title} cannot run the engine: {self._log.reason()}"
            )

    def close(self) -> None:
        self._context = self._engine = None  # the context must be freed before its engine


def set_profile(library: Library, context: Any, number: int, stream: int) -> None:
    if not context.set_optimization_profile_async(number, stream):
        why = library.log.reason()
        raise EnginewrightError(f"{library.title} refuses optimization profile {number} of the engine: {why}")


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


# TensorRT's timing cache: what a builder measured of its kernels, so that the next build need not measure it again.
# It belongs to a machine and not to the pipeline: the timings of another GPU, driver or TensorRT would be wrong.


def timing_cache_path(*identity: str) -> Path:
    """Return the file for an identity, such as GPU, driver and TensorRT version."""
    name = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-") for part in identity)
    return user_cache_path("enginewright") / "timing" / f"{name}.timings"


def locked(path: Path) -> FileLock:
    """Return a lock that one process at a time can hold: two that merge at once would lose the timings of one."""
    return FileLock(path.with_suffix(".lock"))


def read_timing_cache(path: Path) -> bytes:
    """Return what was written. A damaged file is set aside: TensorRT's reader of it must not see other bytes."""
    if not path.exists():
        return b""
    digest, _, content = path.read_bytes().partition(b"\n")
    if digest != hashlib.sha256(content).hexdigest().encode():
        set_aside(path)
        return b""
    return content


def write_timing_cache(path: Path, content: bytes) -> None:
    with new_file(path) as temporary:
        temporary.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def set_aside(path: Path) -> None:
    """Rename a damaged cache, so that it can be looked at, and go on without it: that costs time, not correctness."""
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    print(f"the timing cache {path} is damaged: moved to {aside.name}, a new one is begun", file=sys.stderr)


# The layers of an engine, as TensorRT's engine inspector describes them.

# Patterns of the names of types, such as "Int8", "Half" or "Row major linear FP32". The first that fits counts.
TYPES = {
    "bf16": r"BFloat16|BF16", "fp16": r"Half|FP16|Float16", "fp8": r"FP8|E4M3", "int8": r"Int8", "nvfp4": r"FP4|E2M1",
    "int4": r"Int4", "fp32": r"FP32|Float32|Float", "int32": r"Int32", "int64": r"Int64", "bool": r"Bool",
}  # fmt: skip
# Patterns of kernels' names, where the inspector does not say what they multiply: sm80_xmma_gemm_f32f32_tf32f32_f32_…
KERNELS = {
    "int8": r"i8i8|imma|int8", "fp8": r"e4m3|fp8", "bf16": r"bf16", "fp16": r"f16f16|h884|h1688|h16816|hmma|fp16",
    "tf32": r"tf32", "fp32": r"f32f32|sgemm|fp32",
}  # fmt: skip
COMPUTES = re.compile(r"conv|correlation|gemm|matmul|matrix_?multiply|attention|mha", re.IGNORECASE)


def layer_of(text: str, profile: int = 0) -> Layer:
    """Return a layer in an optimization profile. Its precision may be known from a type, or a kernel's name, or not."""
    described = json.loads(text)
    kind, kernel = str(described.get("LayerType", "")), str(described.get("TacticName", ""))
    # A convolution multiplies its first input. TensorRT 10 has one key for its format and type, 11 one for each.
    first = (described.get("Inputs") or [{}])[0]
    named = _first_fit(TYPES, str(first.get("Datatype") or first.get("Format/Datatype") or ""))
    multiplied = _first_fit(KERNELS, kernel)
    by_kernel = named == UNKNOWN or (named, multiplied) == ("fp32", "tf32")  # the type of both is float32
    return Layer(
        name=str(described.get("Name", "")).removesuffix(f" [profile {profile}]"),
        kind=f"{kind} {kernel}".strip(),
        precision=multiplied if by_kernel else named,
        computes=bool(COMPUTES.search(f"{kind} {kernel}")),
        profile=profile,
    )


def _first_fit(words: Mapping[str, str], text: str) -> str:
    return next((name for name, pattern in words.items() if re.search(pattern, text, re.IGNORECASE)), UNKNOWN)

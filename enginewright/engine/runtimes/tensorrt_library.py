"""Make what TensorRT calls while it works. What the classes inherit is known only once one of the two libraries is
imported, so that each is made within a function."""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock
from platformdirs import user_cache_path

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_file
from enginewright.core.progress import Phases
from enginewright.engine.gpu.session import Growing, Shape
from enginewright.engine.record import UNKNOWN, Layer
from enginewright.engine.runtimes import Arrays
from enginewright.engine.runtimes.layer_times import CallTimes
from enginewright.graph.interface import Blueprint

# Say what TensorRT's messages mean, in a sentence and without the places in NVIDIA's sources.

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
NOT_THE_CAUSE = "CUDA driver version is insufficient"  # follows real errors on a machine that builds without a GPU
SOURCE = re.compile(r"\s*\bIn \S+ at \S+:\d+|\[\w+\.cpp:[^]]*\] ")  # a place in NVIDIA's sources: no use to a user
MOST_CHARACTERS = 400


def with_advice(reason: str, is_rtx: bool, otherwise: str) -> str:
    """Return a reason of TensorRT's, and what to do about it."""
    known = ADVICE | {LACKS_PRECISION: OTHER_GPUS if is_rtx else NO_SUCH_PRECISION}
    found = [advice for words, advice in known.items() if re.search(words, reason, re.IGNORECASE)]
    advice = found[0] if found else otherwise
    return f"{reason.rstrip('.')}. {advice}" if advice else reason


def errors_of(parser: Any) -> str:
    return "; ".join(_sentence(parser.get_error(index)) for index in range(parser.num_errors))


def _sentence(error: Any) -> str:
    """Say in one line what the parser refuses, beginning with the node."""
    node = f"node {error.node_name()} ({error.node_operator()}): " if error.node_name() else ""
    if error.code().name == "UNSUPPORTED_NODE":  # the description itself may be a bare "false"
        node += "this operator is not supported: "
    return node + cause_in(" ".join(line for line in error.desc().splitlines() if NOT_THE_CAUSE not in line))


def cause_in(text: str) -> str:
    """Return a message without the places in NVIDIA's sources, in one line and not too long."""
    return " ".join(SOURCE.sub("", text).split())[:MOST_CHARACTERS]


ERROR = "error: "
MOST_ERRORS = 3
CHUNK = 1 << 26


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
            return "; ".join(dict.fromkeys(map(cause_in, causes[:MOST_ERRORS]))) or "it gave no reason"

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
        """Hands out memory while TensorRT runs. The bindings would print an exception, and TensorRT would only say that
        there is no memory."""

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


def new_reader(trt: Any, file: BinaryIO) -> Any:
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


# Run a plan of TensorRT, in the profile that is nearest to the shapes at hand.


class Executor:
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
            set_profile(self._title, self._context, profile, self._stream, self._log)
        self.place({name: array.ctypes.data for name, array in values.items()})  # TensorRT reads these on the host
        for name, shape in shapes.items():
            if name not in values and not self._context.set_input_shape(name, shape):
                raise EnginewrightError(f"{self._title} refuses shape {shape} for input {name}: {self._log.reason()}")
        tensors = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        return {name: tuple(self._context.get_tensor_shape(name)) for name in tensors if name not in shapes}

    def place(self, addresses: Mapping[str, int]) -> None:
        for name, address in addresses.items():
            if not self._context.set_tensor_address(name, address):
                raise EnginewrightError(f"{self._title} refuses a buffer for {name}: {self._log.reason()}")

    def let_grow(self, outputs: Mapping[str, Growing]) -> None:
        self._allocator.outputs = outputs
        for name in outputs:
            if not self._context.set_output_allocator(name, self._allocator):
                raise EnginewrightError(f"{self._title} refuses a buffer for {name}: {self._log.reason()}")

    def enqueue(self, stream: int) -> None:
        self._allocator.error = None
        if not self._context.execute_async_v3(stream):
            raise self._allocator.error or EnginewrightError(
                f"{self._title} cannot run the engine: {self._log.reason()}"
            )

    def close(self) -> None:
        self._context = self._engine = None  # the context must be freed before its engine


def set_profile(title: str, context: Any, number: int, stream: int, log: Any) -> None:
    if not context.set_optimization_profile_async(number, stream):
        raise EnginewrightError(f"{title} refuses optimization profile {number} of the engine: {log.reason()}")


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
    if digest != _digest(content):
        set_aside(path)
        return b""
    return content


def write_timing_cache(path: Path, content: bytes) -> None:
    with new_file(path) as temporary:
        temporary.write_bytes(_digest(content) + b"\n" + content)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def set_aside(path: Path) -> None:
    """Rename a damaged cache, so that it can be looked at, and go on without it: that costs time, not correctness."""
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    print(f"the timing cache {path} is damaged: moved to {aside.name}, a new one is begun", file=sys.stderr)


# Read the layers of an engine from the description that TensorRT's engine inspector gives.

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
    """Return a layer in an optimization profile. The precision is unknown where neither a type nor a kernel's name
    tells it."""
    described = json.loads(text)
    kind, kernel = str(described.get("LayerType", "")), str(described.get("TacticName", ""))
    return Layer(
        name=str(described.get("Name", "")).removesuffix(f" [profile {profile}]"),
        kind=f"{kind} {kernel}".strip(),
        precision=_precision(described.get("Inputs") or [], kernel),
        computes=bool(COMPUTES.search(f"{kind} {kernel}")),
        profile=profile,
    )


def _precision(inputs: Sequence[Mapping[str, Any]], kernel: str) -> str:
    """Return the type of the first input, which a convolution multiplies. Only its kernel tells TF32 from float32."""
    named = _first_fit(TYPES, _type(inputs[0])) if inputs else UNKNOWN
    multiplied = _first_fit(KERNELS, kernel)
    return multiplied if named == UNKNOWN or (named, multiplied) == ("fp32", "tf32") else named


def _type(tensor: Mapping[str, Any]) -> str:
    """Return the type of a tensor. TensorRT 10 has one key for format and type, 11 one for each."""
    return str(tensor.get("Datatype") or tensor.get("Format/Datatype") or "")


def _first_fit(words: Mapping[str, str], text: str) -> str:
    return next((name for name, pattern in words.items() if re.search(pattern, text, re.IGNORECASE)), UNKNOWN)

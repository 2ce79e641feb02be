"""Make what TensorRT calls while it works. What the classes inherit is known only once one of the two libraries is
imported, so that each is made within a function."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from enginewright.core.errors import EnginewrightError
from enginewright.core.progress import Phases
from enginewright.engine.gpu.session import Growing
from enginewright.engine.runtimes.layer_times import CallTimes
from enginewright.engine.runtimes.tensorrt_words import NOT_THE_CAUSE, cause_in

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

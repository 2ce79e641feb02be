"""What a compiler wants of a quantized graph."""

from enginery.core.params.precisions import Rest
from enginery.core.record import Record
from enginery.core.runtimes import RUNTIMES


class Dialect(Record):
    """What convert must know of the runtime. Many machines share one dialect, and so the same graphs."""

    rest: Rest


def dialect_of(runtime: str) -> Dialect:
    """TensorRT runs what is not quantized exactly as it is typed, and is slow in float32; a CPU is fastest in it."""
    return Dialect(rest="fp16" if RUNTIMES[runtime].is_tensorrt else "fp32")

"""The precisions, and every fact about them that several rooms need."""

from dataclasses import dataclass
from typing import Literal

PrecisionName = Literal["fp32", "fp16", "bf16", "int8", "fp8", "int4", "mxfp8", "nvfp4", "best"]


@dataclass(frozen=True)
class Precision:
    onnx_type: str  # ONNX's name for the type of its numbers
    since: tuple[int, int]  # the first compute capability of GPUs that execute it
    largest: int = 0  # where ranges are calibrated: the number that stands for the end of a range
    block: int = 0  # where only products of matrices are quantized: how many numbers in a row share a scale
    runs_as: tuple[str, ...] = ()  # what layers that do as asked may be called, too
    is_mixed: bool = False  # of int8 and floats, part by part

    @property
    def is_quantized(self) -> bool:
        return self.largest > 0 or self.block > 0

    @property
    def is_calibrated(self) -> bool:
        return self.largest > 0

    @property
    def made_from(self) -> tuple[str, ...]:
        """Return what params.yaml may say that it is made from."""
        if self.is_mixed:
            return ("mixed",)
        if not self.is_calibrated:
            return ("simplified",)
        return ("calibrated",) if self.block else ("searched", "calibrated")


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("FLOAT", since=(7, 5)),
    "fp16": Precision("FLOAT16", since=(7, 5)),
    "bf16": Precision("BFLOAT16", since=(8, 0)),
    "int8": Precision("INT8", since=(7, 5), largest=127),
    "fp8": Precision("FLOAT8E4M3FN", since=(8, 9), largest=448),
    # Its weights are multiplied in the type of the rest, which is all that TensorRT's inspector tells.
    "int4": Precision("INT4", since=(8, 0), block=64, runs_as=("fp16",)),
    "mxfp8": Precision("FLOAT8E4M3FN", since=(10, 0), block=32, runs_as=("fp8",)),  # the same numbers
    "nvfp4": Precision("FLOAT4E2M1", since=(10, 0), block=16, largest=6 * 448),
    "best": Precision("INT8", since=(7, 5), largest=127, is_mixed=True),
}
QUANTIZED = tuple(name for name, precision in PRECISIONS.items() if precision.is_quantized)


def accepted_as(precision: str, tf32: bool) -> tuple[str, ...]:
    """Return the precisions that a layer of an engine of this precision may run in.

    TF32 is how a GPU multiplies float32, where `tf32` allows it. A mix may run in any: it was raced as it runs.
    """
    if PRECISIONS[precision].is_mixed:
        return (*PRECISIONS, "tf32")
    return ("fp32", "tf32") if precision == "fp32" and tf32 else (precision, *PRECISIONS[precision].runs_as)

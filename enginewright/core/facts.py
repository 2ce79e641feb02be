"""The precisions, runtimes and tasks, and every fact about them that several rooms need."""

import importlib.util
import re
from dataclasses import dataclass
from typing import Literal

from enginewright.core.files import Record

PrecisionName = Literal["fp32", "fp16", "bf16", "int8", "fp8", "w8", "int4", "mxfp8", "nvfp4", "best"]
# Instruction sets. A CPU with none of them adds two products of bytes in 16 bits, which overflow.
ADDS_EXACTLY = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimd"})


@dataclass(frozen=True)
class Precision:
    onnx_type: str  # ONNX's name for the type of its numbers
    since: tuple[int, int]  # the first compute capability of GPUs that execute it
    largest: int = 0  # where ranges are calibrated: the number that stands for the end of a range
    block: int = 0  # where only products of matrices are quantized: how many numbers in a row share a scale
    runs_as: tuple[str, ...] = ()  # what layers that do as asked may be called, too
    is_mixed: bool = False  # of int8 and floats, part by part
    is_tried: bool = True  # on a GPU

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
        return ("calibrated",) if self.block else ("searched", "given", "calibrated")


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision("FLOAT", since=(7, 5)),
    "fp16": Precision("FLOAT16", since=(7, 5)),
    "bf16": Precision("BFLOAT16", since=(8, 0)),
    "int8": Precision("INT8", since=(7, 5), largest=127),
    "fp8": Precision("FLOAT8E4M3FN", since=(8, 9), largest=448),
    "w8": Precision("INT8", (7, 5), block=64, runs_as=("int8", "fp32", "fp16", "tf32"), is_tried=False),
    # Its weights are multiplied in the type of the rest, which is all that TensorRT's inspector tells.
    "int4": Precision("INT4", since=(8, 0), block=64, runs_as=("fp16",)),
    "mxfp8": Precision("FLOAT8E4M3FN", (10, 0), block=32, runs_as=("fp8",), is_tried=False),  # the same numbers
    "nvfp4": Precision("FLOAT4E2M1", (10, 0), block=16, largest=6 * 448, is_tried=False),
    "best": Precision("INT8", since=(7, 5), largest=127, is_mixed=True),
}
PYTORCH = "PyTorch"  # what makes reference outputs, unless the model came as an ONNX file
HALVES = ("fp16", "bf16")
QUANTIZED = tuple(name for name, precision in PRECISIONS.items() if precision.is_quantized)


def accepted_as(precision: str, tf32: bool) -> tuple[str, ...]:
    """Return the precisions that a layer of an engine of this precision may run in. TF32 is how a GPU multiplies
    float32, where `tf32` allows it. A mix may run in any: it was raced as it runs."""
    if PRECISIONS[precision].is_mixed:
        return (*PRECISIONS, "tf32")
    return ("fp32", "tf32") if precision == "fp32" and tf32 else (precision, *PRECISIONS[precision].runs_as)


RuntimeName = Literal["openvino", "onnxruntime", "tensorrt", "tensorrt_rtx"]


@dataclass(frozen=True)
class RuntimeFacts:
    title: str
    install: str  # the command that installs it
    distributions: tuple[str, ...]  # the packages that contain it, the usual one first
    trtexec: str | None = None  # TensorRT and TensorRT for RTX only: the command that builds and times a plan
    builds_without_gpu: bool = False  # though its engines need one: for the GPUs that params.yaml lists

    @property
    def is_tensorrt(self) -> bool:
        """Tell whether it is one of NVIDIA's two libraries, which share one API and take strongly typed graphs."""
        return self.trtexec is not None


RUNTIMES: dict[str, RuntimeFacts] = {
    "openvino": RuntimeFacts("OpenVINO", "pip install openvino", ("openvino",)),
    "onnxruntime": RuntimeFacts(
        "ONNX Runtime",
        "pip install onnxruntime-gpu (or onnxruntime, for the CPU alone)",
        ("onnxruntime-gpu", "onnxruntime"),
    ),
    "tensorrt": RuntimeFacts(
        "TensorRT", "pip install -e '.[tensorrt]'", ("tensorrt-cu13", "tensorrt-cu12", "tensorrt"), trtexec="trtexec"
    ),
    "tensorrt_rtx": RuntimeFacts(
        "TensorRT for RTX",
        "pip install -e '.[tensorrt-rtx]'",
        ("tensorrt_rtx",),
        trtexec="tensorrt_rtx",
        builds_without_gpu=True,
    ),
}


def not_installed(name: str) -> str | None:
    """Return how to install a runtime whose library is missing, or None. A library has the name of its runtime."""
    if importlib.util.find_spec(name) is None:
        return f"{RUNTIMES[name].title} is not installed: {RUNTIMES[name].install}"
    return None


# The tasks that come with Enginewright, and the class of each; one of the user's own is `package.module:Task`.

CLASSIFICATION, DETECTION = "classification", "detection"
TASKS = {
    CLASSIFICATION: "enginewright.tasks.classification:Classification",
    DETECTION: "enginewright.tasks.detection:Detection",
    "segmentation": "enginewright.tasks.segmentation:Segmentation",
    "embedding": "enginewright.tasks.embedding:Embedding",
    "regression": "enginewright.tasks.regression:Regression",
    "ranking": "enginewright.tasks.ranking:Ranking",
}
OWN_TASK = re.compile(r"\w+(\.\w+)*:\w+")
IGNORED = 255  # in prepared masks: pixels that do not count
UNSEEN = -1  # the class of pixels of an image that the model does not see


class Known(Record):
    """A task names here what must be known of samples, and how files of samples have it."""

    task: str = CLASSIFICATION
    array: str = "truth"  # its name in a file of arrays
    words: str = "numbers"  # what it is of each sample
    types: str = "biuf"  # NumPy's letters of the types that it may have
    axes: tuple[int, ...] = tuple(range(1, 9))  # how many it may have
    column: str = "label"  # its name in a table
    labels: bool = False  # whether labels serve, too: the folders of a classification are samples for any task
    pairs: bool = False  # whether it is of pairs of samples, such as how alike two texts are
    questions: bool = False  # whether it comes with the questions to which samples are answers
    ignore: int = IGNORED  # in the user's masks: pixels that do not count


LABELLED = Known(array="labels", labels=True)


# The rows of known boxes, as truth.npy has them for each image.

COLUMNS = 6  # class, left, top, right, bottom, and which kind it is
COUNTED, CROWD, IGNORED_BOX = 0, 1, 2  # a crowd stands for many boxes; an ignored one may be found or not
NO_CLASS = -1  # fills the rows of images with fewer boxes than others

"""ONNX graphs: reading and writing them, and asking ONNX Runtime what they mean."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.files import new_file
from enginery.core.params import Profile
from enginery.core.records import GraphCheck

INPUT, OUTPUT = "input", "logits"
CHECKED_SAMPLES = 7  # not the batch of two that the exporter sees: a batch frozen into the graph fails here


def load_graph(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except FileNotFoundError:
        raise EngineryError(f"{path} is missing: run `dvc repro` to make it") from None
    except (DecodeError, onnx.checker.ValidationError) as error:
        if is_plan(path):
            raise EngineryError(f"{path} is a TensorRT engine, and an ONNX file is expected") from None
        raise EngineryError(f"{path} is not a valid ONNX file, it may be truncated: {error}") from None
    return model


def is_plan(path: Path) -> bool:
    """TensorRT's engines begin with ftrt, those for RTX with vtrt."""
    with path.open("rb") as file:
        return file.read(4)[1:] == b"trt"


def require_buildable(path: Path, profile: Profile) -> None:
    """Runtimes differ in what they say of such graphs, and some silently make something else of them."""
    graph = load_graph(path).graph
    inputs = graph.input
    if len(inputs) != 1:
        names = ", ".join(tensor.name for tensor in inputs)
        raise EngineryError(f"{path} takes {len(inputs)} inputs ({names}): engines are fed images alone, one input")
    (tensor,) = inputs
    kind = tensor.type.tensor_type
    if kind.elem_type != onnx.TensorProto.FLOAT:
        found = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        raise EngineryError(f"{path}: input {tensor.name} is {found} and must be float: images are fed as float32")
    if not kind.shape.dim:
        raise EngineryError(f"{path}: input {tensor.name} is a single number, and images are expected")
    batch, *others = kind.shape.dim
    if not all(size.HasField("dim_value") for size in others):
        raise EngineryError(f"{path}: input {tensor.name} has a dynamic size beside its batch; only the batch may vary")
    if batch.HasField("dim_value") and not profile.min == profile.opt == profile.max == batch.dim_value:
        raise EngineryError(
            f"{path}: the batch of input {tensor.name} is fixed at {batch.dim_value}, and build.profile asks for "
            f"{profile.min} to {profile.max}: export with a dynamic batch, or set all three to {batch.dim_value}"
        )
    for output in graph.output:
        _require_logits(path, output, batch.HasField("dim_value"))


def _require_logits(path: Path, output: onnx.ValueInfoProto, fixed_batch: bool) -> None:
    kind = output.type.tensor_type
    if kind.elem_type != onnx.TensorProto.FLOAT:
        found = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
        raise EngineryError(f"{path}: output {output.name} is {found} and must be float")
    if kind.shape.dim and kind.shape.dim[0].HasField("dim_value") and not fixed_batch:
        raise EngineryError(
            f"{path}: the batch of output {output.name} is fixed at {kind.shape.dim[0].dim_value}, and that of the "
            "input is not: a batch size is frozen into the graph"
        )


def save_graph(model: onnx.ModelProto, path: Path) -> None:
    with new_file(path) as temporary:
        onnx.save(model, temporary)


def count_nodes(model: onnx.ModelProto) -> dict[str, int]:
    return dict(sorted(Counter(node.op_type for node in model.graph.node).items()))


def arbiter(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime on the CPU with its optimizer off: what the graph says, not what a compiler made of it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, images: NDArray[np.float32]) -> NDArray[np.float32]:
    (logits,) = session.run([OUTPUT], {INPUT: images})
    return np.asarray(logits, np.float32)


def check_graph(wanted: NDArray[np.float32], got: NDArray[np.float32], limit: float, what: str) -> GraphCheck:
    """Compare outputs; a graph that strays past the limit stops the pipeline here, where the cause is known."""
    error = np.abs(wanted - got)
    relative = float(np.linalg.norm(wanted - got) / max(float(np.linalg.norm(wanted)), 1e-12))
    if not relative <= limit:  # also true for NaN
        raise EngineryError(f"{what}: the relative error is {relative:.2e} and may be {limit:.0e} at most")
    return GraphCheck(samples=len(wanted), max_abs_error=float(error.max()), relative_error=relative)

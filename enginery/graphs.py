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
from enginery.core.records import GraphCheck

INPUT, OUTPUT = "input", "logits"


def load_graph(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except FileNotFoundError:
        raise EngineryError(f"{path} is missing: run `dvc repro` to make it") from None
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise EngineryError(f"{path} is not a valid ONNX file, it may be truncated: {error}") from None
    return model


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

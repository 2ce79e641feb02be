"""Run a graph as it is written: ONNX Runtime on the CPU, with its optimizer off."""

import tempfile
from pathlib import Path

import onnx
import onnxruntime

from enginery.data.feeds import Feeds, Outputs
from enginery.graph.data_apart import is_large
from enginery.graph.onnx_file import save_graph


def open_as_written(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    """Open a session that computes what the graph says, not what a compiler makes of it."""
    return open_session(model, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)


def open_session(
    model: onnx.ModelProto | Path, level: onnxruntime.GraphOptimizationLevel
) -> onnxruntime.InferenceSession:
    if isinstance(model, onnx.ModelProto) and is_large(model):  # too large to be handed over in memory
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "model.onnx"
            save_graph(model, path)
            return open_session(path, level)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, feeds: Feeds) -> Outputs:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))

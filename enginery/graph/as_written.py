"""Run a graph as it is written: ONNX Runtime on the CPU, with its optimizer off."""

from pathlib import Path

import onnx
import onnxruntime

from enginery.data.feeds import Feeds, Outputs


def open_as_written(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    """Open a session that computes what the graph says, not what a compiler makes of it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, feeds: Feeds) -> Outputs:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))

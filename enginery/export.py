"""PyTorch's exporter."""

import contextlib
import io
import logging

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from enginery.core.errors import EngineryError
from enginery.graphs import INPUT, OUTPUT

EXPORT_LIMIT = 1e-4  # float32 sums in another order differ by about 1e-6; a wrong graph by 1e-2 and more


def export_model(model: nn.Module, example: NDArray[np.float32], opset: int) -> onnx.ModelProto:
    """Export with a dynamic batch. BatchNorm is folded into the convolutions by the exporter."""
    batch = torch.export.Dim("batch", min=1)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the exporter prints its progress
            program = torch.onnx.export(
                model,
                (torch.from_numpy(example),),
                dynamo=True,
                opset_version=opset,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: batch},),
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        cause = str(error.__cause__ or error).strip().partition("\n")[0]
        raise EngineryError(f"the model cannot be exported to ONNX: {cause}") from None
    if program is None:
        raise EngineryError("the model cannot be exported to ONNX: PyTorch returned no program")
    return _without_traces(program.model_proto)


def run_model(model: nn.Module, images: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.inference_mode():
        return np.asarray(model(torch.from_numpy(images)).float().numpy())


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop the exporter's stack traces: they hold this machine's paths, so the same model would differ elsewhere."""
    graph = model.graph
    for holder in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del holder.metadata_props[:]
        holder.doc_string = ""
    return model

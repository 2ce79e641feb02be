"""Obtain the model with its weights: trained here, torchvision's, the user's checkpoint, or an ONNX file."""

from contextlib import nullcontext
from pathlib import Path

import onnx
import torch

from enginery.core.brought import brought_model
from enginery.core.files import new_folder, sha256
from enginery.core.params import load_params
from enginery.core.records import Weights
from enginery.core.stage import run_stage
from enginery.graphs import load_graph, save_graph
from enginery.models import RECORD, WEIGHTS
from enginery.original import GIVEN_GRAPH
from enginery.samples import SampleSet
from enginery.user_code import tell_unwatched
from enginery.weights import obtain


def weights(data: Path, models: Path, training: Path, weights: Path) -> None:
    """Write weights.pt, a plain state dict, or model.onnx; and weights.json, which says what model it is for."""
    params, samples = load_params(), SampleSet.open(training)
    with new_folder(weights) as unfinished:
        if params.model.is_onnx:
            file = unfinished / GIVEN_GRAPH
            graph = load_graph(brought_model(params.model.source, models))
            save_graph(graph, file)  # with the weights that it may have beside it
            classes = samples.classes or None
            parameters = sum(len(onnx.numpy_helper.to_array(tensor).ravel()) for tensor in graph.graph.initializer)
        else:
            file = unfinished / WEIGHTS
            with tell_unwatched(params.model.source) if params.model.is_factory else nullcontext():
                model, classes = obtain(params.model, params.weights, samples, data)
            torch.save(model.state_dict(), file)
            parameters = sum(parameter.numel() for parameter in model.parameters())
        record = Weights(
            model=params.model.source,
            arguments=params.model.arguments,
            source=params.weights.source,
            classes=classes,
            sha256=sha256(file),
        )
        record.write(unfinished / RECORD)
    print(f"{record.model}: {parameters:,} parameters, weights from {record.source}")


if __name__ == "__main__":
    run_stage(weights)

"""Get the model with its weights: train it, or take torchvision's weights, the user's checkpoint or an ONNX file."""

import math
from contextlib import nullcontext
from pathlib import Path

from enginewright.core.files import new_folder
from enginewright.core.params.all import Params
from enginewright.core.params.model import NO_SCORES
from enginewright.core.user_files import user_model
from enginewright.data.sample_set import SampleSet
from enginewright.graph.files import graph_sha256
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.model.checkpoint import WEIGHTS, WEIGHTS_RECORD, Weights, save_weights
from enginewright.model.factory import differences
from enginewright.model.from_transformers import described, folder_of, require_its_tokenizer, require_room
from enginewright.model.source_model import GIVEN_GRAPH
from enginewright.model.user_code import warn_of_unwatched_code
from enginewright.model.weights import obtain_model
from enginewright.tasks.choose import misfit_of, task_of
from enginewright.tasks.task import Shapes


def weights(params: Params, data: Path, models: Path, training: Path, weights: Path) -> None:
    """Write weights.pt, a plain state dict, or model.onnx, and the model that it is for to weights.json."""
    asked, source, samples = params.model, params.weights, SampleSet.open(training)
    scores = asked.scores if asked.scores != NO_SCORES else None  # training needs scores even if validation does not

    def misfit(shapes: Shapes) -> str | None:
        known = samples.manifest
        task = task_of(known.task, scores, known.class_names)
        return misfit_of(task, shapes, samples.truth, known.class_names)

    with new_folder(weights) as unfinished:
        if asked.is_onnx:
            file = unfinished / GIVEN_GRAPH
            graph = load_graph(user_model(asked.source, models))
            save_graph(graph, file)  # with the weights that were in several files
            classes = samples.classes or None
            parameters = sum(math.prod(tensor.dims) for tensor in graph.graph.initializer)
        else:
            file, folder = unfinished / WEIGHTS, None
            if asked.library == "transformers":
                folder = folder_of(asked, models)
                asked = asked.model_copy(update={"arguments": described(asked, folder)})
                require_its_tokenizer(folder, samples.manifest.text)
                require_room(asked.arguments, samples.manifest.text)
            with warn_of_unwatched_code(asked.source) if asked.is_factory else nullcontext():
                model, classes = obtain_model(asked, source, samples, data, folder, misfit)
            if asked.library == "timm" and (odd := differences(model, samples.manifest.preprocessing)):
                print(f"MIND: samples.preprocessing has another {'; '.join(odd)}")
            save_weights(model, file)
            parameters = sum(parameter.numel() for parameter in model.parameters())
        record = Weights(
            model=asked.source,
            arguments=asked.arguments,
            source=source.source,
            classes=classes,
            sha256=graph_sha256(file),
        )
        record.write(unfinished / WEIGHTS_RECORD)
    print(f"{record.model}: {parameters:,} parameters, weights from {record.source}")

"""Export the model to ONNX with a dynamic batch, and check it against PyTorch; or take the user's own ONNX file."""

from functools import partial
from itertools import chain, islice
from pathlib import Path

from enginewright.core.files import new_folder
from enginewright.core.params.build import Profile
from enginewright.core.params.model import BoxesParams, ExportParams, ModelParams
from enginewright.data.sample_set import SampleSet, checked_feeds, varying_axes
from enginewright.graph.as_written import run_graph
from enginewright.graph.choose_boxes import FILE as BOXES
from enginewright.graph.choose_boxes import BoxesInGraph
from enginewright.graph.onnx_file import check_at_each_size, count_nodes, load_graph, opset_of, save_graph
from enginewright.graph.read_interface import interface_of, require_fitting_vocabulary
from enginewright.model.checkpoint import WEIGHTS_RECORD, Weights, load_model
from enginewright.model.export import EXPORT_LIMIT, Export, export_model, open_exported, require_names
from enginewright.model.source_model import (
    GIVEN_GRAPH,
    adopt_graph,
    open_source_model,
    require_runs,
    require_same_alone,
    require_steady,
    settle_sizes,
)
from enginewright.tasks.choose import misfit_of, task_of

OTHERS = 8  # batches whose samples differ, and with them the numbers of boxes that are found


def export(weights: Path, validation: Path, exported: Path) -> None:
    """Write model.onnx and export.json, and to boxes.json how later graphs choose boxes, if they do."""
    profile, samples, source_model = Profile.read(), SampleSet.open(validation), open_source_model(weights)
    known = samples.manifest
    task = task_of(known.task, ModelParams.read().scores, known.class_names, BoxesParams.read(), known.preprocessing)
    name = Weights.read(weights / WEIGHTS_RECORD).model
    checked = checked_feeds(samples, profile)
    example = samples.cycled(profile.batch.nearest(2))
    given = weights / GIVEN_GRAPH
    varying = varying_axes(samples, profile)
    adopted = adopt_graph(load_graph(given), example, varying, name) if given.exists() else None
    if adopted:  # interface_of says what does not fit the profile, where running the graph would only fail
        sizes = {profile.batch.nearest(size) for size in (1, 3)}
        others = islice(samples.batches(min(sizes), whole=True), OTHERS)
        settle_sizes(adopted, source_model, chain(map(samples.cycled, sizes), others), profile)
        interface_of(adopted, profile, name)
    else:
        require_names(example)
    misfit = partial(misfit_of, task, truth=samples.truth, class_names=known.class_names)
    wanted = [require_runs(source_model, feeds, samples, misfit) for feeds in checked]
    # Engines would fail at these sizes too, but after hours and with errors of their own.
    for size in sorted({profile.batch.min, profile.batch.max}):
        require_runs(source_model, samples.cycled(size), samples, misfit)
    in_graph = BoxesInGraph.model_validate(task.in_graph({name: values.shape for name, values in wanted[0].items()}))
    require_steady(source_model, checked, wanted)
    if profile.batch.min == 1:
        require_same_alone(source_model, checked[0], wanted[0], task.comparable, known.values)
    del source_model  # its weights, which may be large, while those of a model that has never run are exported
    graph = adopted or export_model(load_model(weights), example, varying, profile, ExportParams.read().opset)
    with new_folder(exported) as unfinished:
        path = unfinished / "model.onnx"
        save_graph(graph, path)
        graph = load_graph(path)  # whose weights are no longer in memory if they are large
        interface_of(graph, profile, f"the exported graph of {name}")
        require_fitting_vocabulary(graph, samples.manifest.text)
        session = open_exported(path, name)
        got = [run_graph(session, feeds) for feeds in checked]
        failure = f"the ONNX graph of {name} does not compute what PyTorch computes"
        worst = check_at_each_size(wanted, got, EXPORT_LIMIT, failure)
        opset = opset_of(graph)
        Export(opset=opset, nodes=count_nodes(graph), against_pytorch=worst).write(unfinished / "export.json")
        in_graph.write(unfinished / BOXES)
    print(f"{len(graph.graph.node)} nodes, opset {opset}, error to PyTorch {worst.relative_error:.1e}")

"""The model itself: as an ONNX graph, and its outputs, which engines are held against."""

from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from enginewright.core.facts import PYTORCH
from enginewright.core.files import new_folder
from enginewright.core.params.all import Params
from enginewright.data.run_all import outputs_here, outputs_on, run_all
from enginewright.data.sample_set import SampleSet, checked_feeds, output_file, varying_axes
from enginewright.graph.as_written import run_graph
from enginewright.graph.choose_boxes import FILE as BOXES
from enginewright.graph.choose_boxes import BoxesInGraph
from enginewright.graph.onnx_file import check_at_each_size, count_nodes, load_graph, opset_of, save_graph
from enginewright.graph.read_interface import interface_of, require_fitting_vocabulary
from enginewright.measure.agreement import answers_by_chance
from enginewright.measure.examples import doubt_about_preparation
from enginewright.measure.records import Reference
from enginewright.model import source_model
from enginewright.model.checkpoint import WEIGHTS_RECORD, Weights, load_model
from enginewright.model.export import EXPORT_LIMIT, ROUNDED_LIMIT, Export, export_model, open_exported, require_names
from enginewright.targets.ray_cluster import open_cluster
from enginewright.tasks.choose import misfit_of, task_of

OTHERS = 8  # batches whose samples differ, and with them the numbers of boxes that are found


def export(params: Params, weights: Path, validation: Path, exported: Path) -> None:
    """Write model.onnx and export.json, and to boxes.json how later graphs choose boxes, if they do."""
    profile, samples, original = (
        params.build.profile,
        SampleSet.open(validation),
        source_model.open_source_model(weights),
    )
    known, how = samples.manifest, params.model
    task = task_of(known.task, how.scores, known.class_names, how.boxes, known.preprocessing)
    name = Weights.read(weights / WEIGHTS_RECORD).model
    checked = checked_feeds(samples, profile)
    example = samples.cycled(profile.batch.nearest(2))
    given = weights / source_model.GIVEN_GRAPH
    varying = varying_axes(samples, profile)
    adopted = source_model.adopt_graph(load_graph(given), example, varying, name) if given.exists() else None
    if adopted:  # interface_of says what does not fit the profile, where running the graph would only fail
        sizes = {profile.batch.nearest(size) for size in (1, 3)}
        others = islice(samples.batches(min(sizes), whole=True), OTHERS)
        source_model.settle_sizes(adopted, original, chain(map(samples.cycled, sizes), others), profile)
        interface_of(adopted, profile, name)
    else:
        require_names(example)
    misfit = partial(misfit_of, task, truth=samples.truth, class_names=known.class_names)
    expected = [source_model.require_runs(original, feeds, samples, misfit) for feeds in checked]
    # Engines would fail at these sizes too, but after hours and with errors of their own.
    for size in sorted({profile.batch.min, profile.batch.max}):
        source_model.require_runs(original, samples.cycled(size), samples, misfit)
    in_graph = BoxesInGraph.model_validate(task.in_graph({name: values.shape for name, values in expected[0].items()}))
    source_model.require_steady(original, checked, expected)
    if profile.batch.min == 1:
        source_model.require_same_alone(original, checked[0], expected[0], task.comparable, known.values)
    del original  # its weights, which may be large, while those of a model that has never run are exported
    graph = adopted or export_model(load_model(weights), example, varying, profile, params.export.opset)
    with new_folder(exported) as unfinished:
        path = unfinished / "model.onnx"
        save_graph(graph, path)
        graph = load_graph(path)  # whose weights are no longer in memory if they are large
        interface_of(graph, profile, f"the exported graph of {name}")
        require_fitting_vocabulary(graph, samples.manifest.text)
        session = open_exported(path, name)
        got = [run_graph(session, feeds) for feeds in checked]
        failure = f"the ONNX graph of {name} does not compute what PyTorch computes"
        opset, nodes = opset_of(graph), count_nodes(graph)
        limit = ROUNDED_LIMIT if "QuantizeLinear" in nodes and not adopted else EXPORT_LIMIT
        worst = check_at_each_size(expected, got, limit, failure)
        Export(opset=opset, nodes=nodes, against_pytorch=worst).write(unfinished / "export.json")
        in_graph.write(unfinished / BOXES)
    print(f"{len(graph.graph.node)} nodes, opset {opset}, error to PyTorch {worst.relative_error:.1e}")


BATCH = 32


def reference(params: Params, weights: Path, validation: Path, reference: Path) -> None:
    """Write output-0.npy and so on, and reference.json."""
    samples, sizes = SampleSet.open(validation), params.build.profile.batch
    whole = sizes.min > 1  # at a minimum of 1, the last batch may be smaller
    with open_cluster(params.cluster) as cluster:
        elsewhere = outputs_on(source_model.model_work(weights), cluster) if cluster else None
        run = source_model.open_source_model(weights)
        outputs = run_all(elsewhere or outputs_here(run), samples, sizes.nearest(BATCH), whole, "reference")
    known, how = samples.manifest, params.model
    task = task_of(known.task, how.scores, known.class_names, how.boxes, known.preprocessing)
    outputs = task.as_engine(outputs)
    truth, everything = samples.truth, np.arange(len(samples))
    measured = [] if truth is None else zip(task.metrics, task.measure(outputs, truth, everything), strict=False)
    metrics = {metric.name: (metric, metric.over(statistics)) for metric, statistics in measured}
    maker = "ONNX Runtime" if (weights / source_model.GIVEN_GRAPH).exists() else PYTORCH
    doubt = doubt_about_preparation(run, samples, task, outputs, sizes, maker)
    result = Reference(
        made_by=maker,
        outputs=tuple(outputs),
        samples=len(samples),
        metrics={name: value for name, (_, value) in metrics.items()},
        by_chance=answers_by_chance(task.knowing(truth, everything), outputs, truth),
        doubt=doubt,
    )
    with new_folder(reference) as unfinished:
        for index, values in enumerate(outputs.values()):
            np.save(unfinished / output_file(index), values, allow_pickle=False)
        result.write(unfinished / "reference.json")
    found = ", ".join(f"{metric.name} {metric.written(value)}" for metric, value in metrics.values())
    shapes = {name: values.shape for name, values in outputs.items()}
    why = misfit_of(task, shapes, truth, known.class_names) or task.lacking
    found = found or f"{task.metrics[0].name} not measured, {why}"
    print(f"{result.made_by}: {found}; {result.samples} validation {known.kind}")
    if doubt := doubt or ("its answers fit other samples as well" if result.by_chance else None):
        print(f"MIND: {doubt}")

"""Run the model itself over the validation set: each engine is held against these outputs."""

from pathlib import Path

import numpy as np

from enginewright.core.facts import PYTORCH
from enginewright.core.files import new_folder
from enginewright.core.params.build import Profile
from enginewright.core.params.model import BoxesParams, ModelParams
from enginewright.data.run_all import outputs_on, run_all
from enginewright.data.sample_set import SampleSet, output_file
from enginewright.measure.accuracy_records import Reference
from enginewright.measure.agreement import answers_by_chance
from enginewright.measure.examples import doubt_about_preparation
from enginewright.model.source_model import GIVEN_GRAPH, model_work, open_source_model
from enginewright.targets.ray_cluster import open_cluster
from enginewright.tasks.choose import task_of

BATCH = 32


def reference(weights: Path, validation: Path, reference: Path) -> None:
    """Write output-0.npy and so on, and reference.json."""
    samples, sizes = SampleSet.open(validation), Profile.read().batch
    whole = sizes.min > 1  # at a minimum of 1, the last batch may be smaller
    with open_cluster() as cluster:
        elsewhere = outputs_on(model_work(weights), cluster) if cluster else None
        run = open_source_model(weights)
        outputs = run_all(run, samples, sizes.nearest(BATCH), whole, "reference", outputs=elsewhere)
    known, scores = samples.manifest, ModelParams.read().scores
    task = task_of(known.task, scores, known.class_names, BoxesParams.read(), known.preprocessing)
    outputs = task.as_engine(outputs)
    truth, everything = samples.truth, np.arange(len(samples))
    measured = [] if truth is None else zip(task.metrics, task.measure(outputs, truth, everything), strict=False)
    metrics = {metric.name: (metric, metric.over(statistics)) for metric, statistics in measured}
    maker = "ONNX Runtime" if (weights / GIVEN_GRAPH).exists() else PYTORCH
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
    found = found or f"{task.metrics[0].name} not measured, {task.lacking}"
    print(f"{result.made_by}: {found}; {result.samples} validation {known.kind}")
    if doubt:
        print(f"MIND: {doubt}")

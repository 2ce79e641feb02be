"""Run the model itself over the validation set: each engine is held against these outputs."""

from pathlib import Path

import numpy as np

from enginery.accuracy.agreement import accuracy_of
from enginery.core.files import new_folder
from enginery.core.params.build import Profile
from enginery.core.params.model import ModelParams
from enginery.data.feeds import scores_among
from enginery.data.sample_set import SampleSet, output_file, run_all
from enginery.model.records import Reference
from enginery.model.source_model import made_by, open_source_model

BATCH = 32


def reference(weights: Path, validation: Path, reference: Path) -> None:
    """Write output-0.npy and so on, and reference.json."""
    samples, sizes = SampleSet.open(validation), Profile.read().batch
    whole = sizes.min > 1  # at a minimum of 1, the last batch may be smaller
    outputs = run_all(open_source_model(weights), samples, sizes.nearest(BATCH), whole, "reference")
    shapes = {name: values.shape for name, values in outputs.items()}
    accuracy = accuracy_of(outputs, samples.labels, scores_among(shapes, samples.classes, ModelParams.read().scores))
    result = Reference(made_by=made_by(weights), outputs=tuple(outputs), samples=len(samples), accuracy=accuracy)
    with new_folder(reference) as unfinished:
        for index, values in enumerate(outputs.values()):
            np.save(unfinished / output_file(index), values, allow_pickle=False)
        result.write(unfinished / "reference.json")
    right = "accuracy not measured, no labels or no scores;" if result.accuracy is None else f"{result.accuracy:.2%} of"
    print(f"{result.made_by}: {right} {result.samples} validation images")

"""The model's own outputs over the validation set: what every engine is held against."""

from pathlib import Path

import numpy as np

from enginery.agreement import accuracy_of
from enginery.core.files import new_folder
from enginery.core.params import load_params
from enginery.core.records import Reference
from enginery.core.stage import run_stage
from enginery.feeds import scores_among
from enginery.original import made_by, open_original
from enginery.samples import SampleSet, output_file, run_all

BATCH = 32


def reference(weights: Path, validation: Path, reference: Path) -> None:
    """Write output-0.npy and so on, and reference.json."""
    params, samples = load_params(), SampleSet.open(validation)
    sizes = params.build.profile.batch
    whole = sizes.min > 1  # else the last batch may be as small as it comes out
    outputs = run_all(open_original(weights), samples, sizes.nearest(BATCH), whole, "reference")
    shapes = {name: values.shape for name, values in outputs.items()}
    accuracy = accuracy_of(outputs, samples.labels, scores_among(shapes, samples.classes, params.model.scores))
    result = Reference(made_by=made_by(weights), outputs=tuple(outputs), samples=len(samples), accuracy=accuracy)
    with new_folder(reference) as unfinished:
        for index, values in enumerate(outputs.values()):
            np.save(unfinished / output_file(index), values, allow_pickle=False)
        result.write(unfinished / "reference.json")
    right = "accuracy not measured, no labels or no scores;" if result.accuracy is None else f"{result.accuracy:.2%} of"
    print(f"{result.made_by}: {right} {result.samples} validation images")


if __name__ == "__main__":
    run_stage(reference)

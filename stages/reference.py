"""PyTorch's own logits over the validation set: what every engine is held against."""

from pathlib import Path

import numpy as np

from enginery.agreement import accuracy
from enginery.core.files import new_folder
from enginery.core.progress import progress
from enginery.core.records import Reference, Weights
from enginery.core.stage import run_stage
from enginery.export import run_model
from enginery.models import load_model
from enginery.samples import SampleSet

BATCH = 32


def reference(weights: Path, validation: Path, reference: Path) -> None:
    """Write logits.npy and reference.json."""
    record = Weights.read(weights / "weights.json")
    model = load_model(record.model, record.classes, weights / "weights.pt")
    samples = SampleSet.open(validation)
    batches = progress(samples.batches(BATCH), "reference", -(-len(samples) // BATCH))
    logits = np.concatenate([run_model(model, images) for images in batches])
    result = Reference(samples=len(samples), accuracy=accuracy(logits, samples.labels))
    with new_folder(reference) as unfinished:
        np.save(unfinished / "logits.npy", logits)
        result.write(unfinished / "reference.json")
    right = "accuracy not measured, no labels;" if result.accuracy is None else f"{result.accuracy:.2%} of"
    print(f"PyTorch: {right} {result.samples} validation images")


if __name__ == "__main__":
    run_stage(reference)

"""Obtain the model's weights: trained here, torchvision's, or the user's checkpoint."""

from pathlib import Path

import torch

from enginery.core.files import new_folder, sha256
from enginery.core.params import load_params
from enginery.core.records import Weights
from enginery.core.stage import run_stage
from enginery.samples import SampleSet
from enginery.weights import obtain


def weights(data: Path, training: Path, weights: Path) -> None:
    """Write weights.pt, a plain state dict, and weights.json, which says what model it is for."""
    params = load_params()
    samples = SampleSet.open(training)
    model = obtain(params.model.name, params.weights, samples, data)
    with new_folder(weights) as unfinished:
        torch.save(model.state_dict(), unfinished / "weights.pt")
        record = Weights(
            model=params.model.name,
            source=params.weights.source,
            classes=len(samples.manifest.class_names),
            sha256=sha256(unfinished / "weights.pt"),
        )
        record.write(unfinished / "weights.json")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{record.model}: {parameters:,} parameters, weights from {record.source}")


if __name__ == "__main__":
    run_stage(weights)

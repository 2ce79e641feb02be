"""Decode and preprocess the data set once, into disjoint splits."""

from pathlib import Path

from enginery.core.params.samples import SamplesParams
from enginery.data.sources import open_source
from enginery.data.splits import shared_images, split, write_split


def samples(data: Path, training: Path, calibration: Path, validation: Path) -> None:
    """Write the training, calibration and validation splits."""
    params = SamplesParams.read()
    source = open_source(params, data)
    folders = {"training": training, "calibration": calibration, "validation": validation}
    manifests = {}
    for name, indices in split(len(source), params).items():
        manifests[name] = write_split(source, indices, params, folders[name])
        labels = "" if manifests[name].is_labeled else ", without labels"
        print(f"{name}: {len(indices)} of {len(source)} images from {params.source}{labels}")
    if shared := shared_images(manifests):
        print(f"MIND: {shared}")

"""Decode and preprocess the data set once, into disjoint splits."""

from pathlib import Path

import numpy as np

from enginewright.core.facts import Known
from enginewright.core.params.all import Params
from enginewright.data.sample_set import SampleSet
from enginewright.data.sources import open_source
from enginewright.data.splits import shared_images, split, write_split, write_uncropped


def samples(
    params: Params, data: Path, texts: Path, task: Path, training: Path, calibration: Path, validation: Path
) -> None:
    """Write the training, calibration and validation splits."""
    asked, known = params.samples, Known.read(task)
    source = open_source(asked, data, known, texts)
    folders = {"training": training, "calibration": calibration, "validation": validation}
    divided = split(len(source), asked, source.truths)
    manifests = {
        name: write_split(source, indices, asked, folders[name], known.task) for name, indices in divided.items()
    }
    write_uncropped(source, divided["validation"], validation)
    for name, indices in divided.items():
        truth = SampleSet(folders[name], manifests[name]).truth
        is_known = truth is not None and not (known.questions and np.isnan(truth).any())
        labels = "" if is_known else f", without {known.array}"
        text = manifests[name].text
        cut = f", {text.cut} longer than {text.how.longest} tokens, and cut" if text and text.cut else ""
        print(f"{name}: {len(indices)} of {len(source)} {manifests[name].kind} from {asked.source}{labels}{cut}")
    if shared := shared_images(manifests):
        print(f"MIND: {shared}")

"""Keep what the exact graph answers while its activations are measured, so that a search need not run it on all samples
again. The answers belong to a machine, whose number of cores decides their last bits, and not to the pipeline."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from enginewright.core.files import new_file, sha256, sha256_of
from enginewright.data.feeds import Outputs
from enginewright.data.sample_set import MANIFEST, SampleSet
from enginewright.precision.calibration.cache import Calibration

MOST_FILES = 20  # in a folder, of which the oldest goes first


def keep_answers(ranges: Calibration, samples: SampleSet, batches: Sequence[Outputs]) -> None:
    """Keep the answers that the samples got while these ranges were measured, unless some are missing or of other
    sizes."""
    shapes = {tuple(values.shape[1:] for values in batch.values()) for batch in batches}
    if len(shapes) != 1 or not all(batches):
        return
    answers = [np.concatenate([batch[name] for batch in batches])[: len(samples)] for name in batches[0]]
    file = _file_of(ranges, samples)
    try:
        with new_file(file) as temporary, temporary.open("wb") as opened:
            np.savez(opened, *answers, names=np.array(list(batches[0])))
        for old in sorted(file.parent.glob("*.npz"), key=lambda each: each.stat().st_mtime)[:-MOST_FILES]:
            old.unlink()
    except OSError:  # a full or a read-only disk: the search runs the graph again
        pass


def kept_answers(ranges: Calibration, samples: SampleSet) -> Outputs | None:
    """Return what is known, or None."""
    try:
        with _file_of(ranges, samples).open("rb") as opened:
            file = np.load(opened)
            return {str(name): file[f"arr_{number}"] for number, name in enumerate(file["names"])}
    except Exception:  # missing or damaged: NumPy and zipfile raise what the parsers beneath them do
        return None


def _file_of(ranges: Calibration, samples: SampleSet) -> Path:
    # Other code may prepare other pixels of the same files, which then have other ranges.
    about = ranges.model_sha256, ranges.cache_sha256, sha256(samples.folder / MANIFEST)
    return user_cache_path("enginewright") / "answers" / f"{sha256_of(about)}.npz"

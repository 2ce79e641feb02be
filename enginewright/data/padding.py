"""Count what padding costs: the share of tokens that only make the texts of a batch equally long."""

import numpy as np
from numpy.typing import NDArray

from enginewright.core.record import Record
from enginewright.data.sample_set import SampleSet
from enginewright.data.texts import padded_length


class Padding(Record):
    """The lengths of texts in tokens, and which share of what a model computes on is padding: with the texts of a
    batch chosen by length, and as they come. `cut` of them were longer than `longest_allowed`."""

    texts: int
    shortest: int
    median: float
    longest: int
    longest_allowed: int
    cut: int
    batch: int
    by_length: float
    as_they_come: float


def padding_of(samples: SampleSet, batch: int) -> Padding | None:
    """Return what is padded in batches of a size, or None if the samples are no texts."""
    text, lengths = samples.manifest.text, samples.lengths
    if text is None or lengths is None or not len(lengths):
        return None
    everything = np.arange(len(lengths))
    as_they_come = [everything[start : start + batch] for start in range(0, len(lengths), batch)]
    return Padding(
        texts=len(lengths),
        shortest=int(lengths.min()),
        median=float(np.median(lengths)),
        longest=int(lengths.max()),
        longest_allowed=text.how.longest,
        cut=text.cut,
        batch=batch,
        by_length=_share(samples, lengths, samples.places(everything, batch, whole=False)),
        as_they_come=_share(samples, lengths, as_they_come),
    )


def _share(samples: SampleSet, lengths: NDArray[np.int64], batches: list[NDArray[np.int64]]) -> float:
    assert samples.manifest.text, "the caller looked"
    how = samples.manifest.text.how
    computed = sum(len(few) * padded_length(int(lengths[few].max()), how) for few in batches)
    return 1 - float(lengths.sum()) / computed

"""Cut a set of samples into parts, each of which can be worked on anywhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet

# Samples in a part. It follows from the samples alone, and never from how many machines there are.
AT_ONCE = 128
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    samples: SampleSet
    batches: tuple[Places, ...]

    def feeds(self) -> Iterator[Feeds]:
        for places in self.batches:
            yield self.samples.read_at(places)

    def packed(self) -> Self:
        ends = np.cumsum([len(places) for places in self.batches])
        places = np.split(np.arange(ends[-1]), ends[:-1])
        return type(self)(self.samples.portion(np.concatenate(self.batches)), tuple(places))


def cut(samples: SampleSet, batches: Sequence[Places], at_once: int = AT_ONCE) -> list[Part]:
    """Return parts of whole batches: what a batch holds does not depend on the part that it is in."""
    if not batches:
        return []
    each = max(1, at_once // len(batches[0]))
    return [Part(samples, tuple(batches[start : start + each])) for start in range(0, len(batches), each)]

"""The moments of one inference on a GPU."""

from typing import NamedTuple


class Moments(NamedTuple):
    """The moments at which the parts of one inference on a GPU began and ended, in seconds after its inputs were bound.
    The host's clock gives the first two, and the device's the others: one event ends a part and begins the next."""

    enqueuing: float
    enqueued: float
    copying_in: float
    computing: float
    copying_out: float
    done: float

    @property
    def compute(self) -> float:
        return self.copying_out - self.computing

"""Try sets of layers on calibration samples."""

from collections.abc import Callable, Collection

import numpy as np
import onnx
from numpy.typing import NDArray

from enginery.core.params.precisions import Thresholds
from enginery.data.feeds import Outputs, Run
from enginery.data.sample_set import SampleSet
from enginery.search.checks import TINY, Checks
from enginery.search.records import Step
from enginery.search.switches import SwitchedGraph
from enginery.tasks.task import Task


class Trial(Checks):
    """What sets of layers make of the outputs."""

    def __init__(
        self,
        graph: onnx.ModelProto,
        switched: SwitchedGraph,
        run_with: Callable[[Collection[str]], Run],
        samples: SampleSet,
        task: Task,
        limits: Thresholds,
    ) -> None:
        """`run_with` runs the graph as it will be converted with these layers spared, which `switched` resembles."""
        super().__init__(graph, samples, task, limits)
        self._switched, self._run_with = switched, run_with

    def loss_alone(self, layer: str) -> float:
        """Return the relative error of the outputs if this layer alone is in int8: the root mean square over samples.

        The squares of such errors add up, nearly. What an int8 graph gains from sparing one layer is a small difference
        of two large errors, and puts the layers in a worse order.
        """
        others = [name for name in self._switched.layers if name != layer]
        return _error(self._switched.run(self._feeds, others), self._wanted)

    def check(self, spared: Collection[str], work: float) -> Step:
        """Say what is lost with these layers in floating point."""
        return self.check_run(self._run_with(spared), len(spared), work)


def _error(found: Outputs, exact: Outputs) -> float:
    shares = [_norms(found[name] - values) / np.maximum(_norms(values), TINY) for name, values in exact.items()]
    return float(np.sqrt(np.mean(np.square(shares))))


def _norms(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(values.reshape(len(values), -1).astype(np.float64), axis=1))

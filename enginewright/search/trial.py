"""Try sets of layers on calibration samples."""

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from enginewright.core.params.precisions import Thresholds
from enginewright.data.feeds import Outputs
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import run_optimized
from enginewright.search.checks import Checks
from enginewright.search.on_cluster import Loss, OnCluster
from enginewright.search.records import Step
from enginewright.search.switches import Rounding, SwitchedGraph, loss_alone
from enginewright.tasks.task import Task

TOGETHER = 16  # layers that one session switches: opening it takes as long as measuring one of a large network


class Trial(Checks):
    """Say what the outputs lose with sets of layers in floating point."""

    def __init__(
        self,
        graph: onnx.ModelProto,
        rounding: Rounding,
        convert: Callable[[Collection[str]], onnx.ModelProto],
        samples: SampleSet,
        task: Task,
        limits: Thresholds,
        on_cluster: OnCluster | None = None,
        known: Outputs | None = None,
        held: NDArray[np.int64] | None = None,
    ) -> None:
        """`convert` writes the graph with some layers spared. It runs on a cluster where there is one. `known` are the
        exact answers to all samples, if they are known. The samples in `held` choose nothing."""
        super().__init__(graph, samples, task, limits, on_cluster.exact() if on_cluster else None, known, held)
        self._rounding, self._convert, self._on_cluster = rounding, convert, on_cluster

    def losses_alone(self, layers: Sequence[str]) -> Iterator[Loss]:
        """Yield each layer with the relative error of the outputs if it alone is in int8."""
        if self._on_cluster:
            yield from self._on_cluster.losses_alone(layers, self._batches)
            return
        for start in range(0, len(layers), TOGETHER):
            yield from self._losses_in_one_session(layers[start:][:TOGETHER])

    def _losses_in_one_session(self, layers: Sequence[str]) -> Iterator[Loss]:
        switched = SwitchedGraph(self._graph, self._rounding, layers)
        yield from ((layer, loss_alone(switched, layer, self._batches, self._wanted)) for layer in layers)

    def check(self, spared: Collection[str], work: float) -> Step:
        """Say what is lost with these layers in floating point."""
        written = self._convert(spared)
        if self._on_cluster:
            return self.check_there(self._on_cluster.running(written), len(spared), work)
        return self.check_run(run_optimized(written), len(spared), work)

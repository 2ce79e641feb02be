"""Try sets of layers on calibration samples."""

from collections.abc import Callable, Collection, Iterable, Iterator

import onnx

from enginery.core.params.precisions import Thresholds
from enginery.data.feeds import Run
from enginery.data.sample_set import SampleSet
from enginery.search.checks import Checks
from enginery.search.on_cluster import OnCluster
from enginery.search.records import Step
from enginery.search.switches import SwitchedGraph, loss_alone
from enginery.tasks.task import Task


class Trial(Checks):
    """Say what the outputs lose with sets of layers in floating point."""

    def __init__(
        self,
        graph: onnx.ModelProto,
        switched: SwitchedGraph,
        run_with: Callable[[Collection[str]], Run],
        samples: SampleSet,
        task: Task,
        limits: Thresholds,
        on_cluster: OnCluster | None = None,
    ) -> None:
        """`run_with` runs the graph as it will be converted with these layers spared, which `switched` resembles. A
        cluster does that in their place, where there is one."""
        super().__init__(graph, samples, task, limits, on_cluster.exact() if on_cluster else None)
        self._switched, self._run_with, self._on_cluster = switched, run_with, on_cluster

    def losses_alone(self, layers: Iterable[str]) -> Iterator[tuple[str, float]]:
        """Yield each layer with the relative error of the outputs if it alone is in int8."""
        if self._on_cluster:
            return self._on_cluster.losses_alone(layers, self._batches)
        return ((layer, loss_alone(self._switched, layer, self._batches, self._wanted)) for layer in layers)

    def check(self, spared: Collection[str], work: float) -> Step:
        """Say what is lost with these layers in floating point."""
        if self._on_cluster:
            return self.check_there(self._on_cluster.with_spared(spared), len(spared), work)
        return self.check_run(self._run_with(spared), len(spared), work)

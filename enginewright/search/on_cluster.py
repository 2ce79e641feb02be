"""Try layers on the machines of a cluster: single layers side by side, and sets of layers over parts of the samples."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import onnx

from enginewright.cluster.spread import Cluster, Work, spread
from enginewright.data.feeds import Feeds
from enginewright.data.run_all import OutputsOf, outputs_on
from enginewright.graph.as_written import GraphWork, run_optimized
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.quantization.placement import arithmetic_nodes
from enginewright.search.switches import Rounding, SwitchedGraph, loss_alone

Loss = tuple[str, float]  # of a layer


class OnCluster:
    def __init__(self, cluster: Cluster, graph: onnx.ModelProto, rounding: Rounding, scratch: Path) -> None:
        self._cluster, self._rounding, self._scratch = cluster, rounding, scratch
        self._folder = self._written(graph)

    def losses_alone(self, layers: Iterable[str], batches: Sequence[Feeds]) -> Iterator[Loss]:
        return spread(LayersAlone(self._folder, self._rounding, batches), map(Layer, layers), self._cluster)

    def exact(self) -> OutputsOf | None:
        return outputs_on(GraphWork(self._folder, optimized=True), self._cluster)

    def running(self, graph: onnx.ModelProto) -> OutputsOf | None:
        return outputs_on(GraphWork(self._written(graph), optimized=True), self._cluster)

    def _written(self, graph: onnx.ModelProto) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        save_graph(graph, folder / "model.onnx")
        return folder


@dataclass(frozen=True)
class Layer:
    name: str

    def packed(self) -> Self:
        return self


@dataclass(frozen=True)
class LayersAlone(Work[Layer, Loss]):
    """Measure what the outputs for some batches lose if one layer alone is in int8."""

    folder: Path
    rounding: Rounding
    batches: Sequence[Feeds]

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[Layer], Loss]]:
        graph = load_graph(self.folder / "model.onnx")
        wanted = list(map(run_optimized(graph, threads), self.batches))
        switched = SwitchedGraph(graph, self.rounding, arithmetic_nodes(graph, self.rounding.kept), threads)
        yield lambda layer: (layer.name, loss_alone(switched, layer.name, self.batches, wanted))

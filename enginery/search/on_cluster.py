"""Try layers on the machines of a cluster: single layers side by side, and sets of layers over parts of the samples."""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import onnx

from enginery.cluster.spread import Cluster, Work, spread
from enginery.data.feeds import Feeds, Outputs
from enginery.data.parts import Part
from enginery.data.run_all import OutputsOf, outputs_on
from enginery.graph.as_written import GraphWork, open_as_written, run_graph
from enginery.graph.onnx_file import load_graph, save_graph
from enginery.quantization.write_int8 import Range, Rounded
from enginery.search.switches import SwitchedGraph, loss_alone

Loss = tuple[str, float]  # of a layer


class Rounding(NamedTuple):
    """The arguments of a switched graph, beside the graph."""

    ranges: Mapping[str, Range]
    kept: frozenset[str]
    largest: int
    rounded: Rounded
    precision: str

    def switched(self, folder: Path, threads: int) -> SwitchedGraph:
        return SwitchedGraph(load_graph(folder / "model.onnx"), *self, threads)


class OnCluster:
    def __init__(
        self,
        cluster: Cluster,
        graph: onnx.ModelProto,
        rounding: Rounding,
        convert: Callable[[Collection[str]], onnx.ModelProto] | None,
        scratch: Path,
    ) -> None:
        """`convert` returns the graph with some layers spared where the switched one only resembles it."""
        self._cluster, self._rounding, self._convert, self._scratch = cluster, rounding, convert, scratch
        self._folder = self._written(graph)

    def losses_alone(self, layers: Iterable[str], batches: Sequence[Feeds]) -> Iterator[Loss]:
        return spread(LayersAlone(self._folder, self._rounding, batches), map(Layer, layers), self._cluster)

    def exact(self) -> OutputsOf | None:
        return outputs_on(GraphWork(self._folder), self._cluster)

    def with_spared(self, spared: Collection[str]) -> OutputsOf | None:
        if self._convert:
            return outputs_on(GraphWork(self._written(self._convert(spared))), self._cluster)
        return outputs_on(LayersSpared(self._folder, self._rounding, tuple(spared)), self._cluster)

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
        exact = open_as_written(load_graph(self.folder / "model.onnx"), threads)
        wanted = [run_graph(exact, feeds) for feeds in self.batches]
        graph = self.rounding.switched(self.folder, threads)
        yield lambda layer: (layer.name, loss_alone(graph, layer.name, self.batches, wanted))


@dataclass(frozen=True)
class LayersSpared(Work[Part, list[Outputs]]):
    """Run the graph in int8, but for these layers."""

    folder: Path
    rounding: Rounding
    spared: tuple[str, ...]

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[Part], list[Outputs]]]:
        run = self.rounding.switched(self.folder, threads).run_with(self.spared)
        yield lambda part: [run(feeds) for feeds in part.feeds()]

"""Try layers in int8 or fp8: single ones, of which one session measures many, and sets of them."""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.core.cores import Cluster, Work, spread
from enginewright.data.feeds import TINY, Feeds, Outputs, Run, norms
from enginewright.data.run_all import OutputsOf, outputs_on
from enginewright.graph.as_written import GraphWork, run_optimized
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.placement import Placement, arithmetic_nodes
from enginewright.precision.records import Step
from enginewright.precision.search.checks import Checks
from enginewright.precision.write_int8 import Bounds, Rounded, Writer

TOGETHER = 16  # layers that one session switches: opening it takes as long as measuring one of a large network
Site = tuple[str, str, int]  # a tensor that is rounded for the input of a node, by names
LossAlone = tuple[str, float]  # of a layer


class Rounding(NamedTuple):
    """Say what is rounded in a graph, and how."""

    ranges: Mapping[str, Bounds]
    kept: frozenset[str]  # the nodes that are always in floating point
    largest: int
    rounded: Rounded
    precision: str
    exact_sums: bool


class SwitchedGraph:
    """A graph in which one layer at a time can be in bytes. It rounds where `write_int8` does. Layers are arithmetic:
    what only moves numbers follows those it feeds."""

    def __init__(self, model: onnx.ModelProto, rounding: Rounding, layers: Collection[str], threads: int = 0) -> None:
        """Let each of these layers be switched to bytes. The fewer they are, the faster is the rest."""
        writer = Writer(model, rounding.kept, rounding.precision, rounding.exact_sums)
        every = {node.name or "" for node in writer.placement.arithmetic}
        alone = {name: rounding.kept | every - {name} for name in layers}
        self._sites = {name: _sites(writer.model, kept, rounding.exact_sums) for name, kept in alone.items()}
        self._graph, self._switches = writer.model.graph, dict[Site, str]()
        switched = set().union(*self._sites.values())
        for node in writer.placement.products:
            weights = node.inputs[1]
            if weights is None or weights.const_value is None or _site(weights, node, 1) not in switched:
                continue
            writer.round_weights(node, rounding.largest, rounding.rounded)
            self._graph.initializers.setdefault(weights.name or "", weights)
            self._add_switch(weights, node, 1)
        for group in writer.groups:
            grid = writer.grid_for(group, rounding.ranges)
            for value, readers in group.items():
                few = [(node, index) for node, index in readers if _site(value, node, index) in switched]
                if few:
                    writer.round_activations({value: few}, grid)
                for node, index in few:
                    self._add_switch(value, node, index)
        self._run = run_optimized(ir.to_proto(writer.model), threads)

    def run_alone(self, layer: str) -> Run:
        """Return what runs the graph with this layer alone in bytes."""
        switches = {name: np.asarray(site in self._sites[layer]) for site, name in self._switches.items()}
        return lambda feeds: self._run({**feeds, **switches})

    def _add_switch(self, exact: ir.Value, node: ir.Node, index: int) -> None:
        """Let the node read what is rounded or what is exact, as an input of the graph says."""
        name = self._switches[_site(exact, node, index)] = f"switch.{len(self._switches)}"
        switch = ir.val(name, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
        self._graph.inputs.append(switch)
        # ONNX Runtime copies what If returns, which takes a tenth of the time of its Where.
        branches = {
            "then_branch": _returning(node.inputs[index], f"{name}.rounded"),
            "else_branch": _returning(exact, f"{name}.exact"),
        }
        chosen = ir.node("If", [switch], branches, outputs=[ir.val(f"{name}.chosen")])
        node.prepend(chosen)
        node.replace_input_with(index, chosen.outputs[0])


def _sites(model: ir.Model, kept: Collection[str], exact_sums: bool) -> set[Site]:
    """Return what is rounded where with the nodes of these names in floating point."""
    placement = Placement(model, kept, exact_sums)
    activations = {
        _site(value, *reader) for group in placement.groups() for value, readers in group.items() for reader in readers
    }
    return activations | {_site(node.inputs[1], node, 1) for node in placement.products}


def _site(value: ir.Value | None, node: ir.Node, index: int) -> Site:
    return (value.name or "") if value is not None else "", node.name or "", index


def _returning(value: ir.Value | None, name: str) -> ir.Graph:
    copy = ir.node("Identity", [value], outputs=[ir.val(name)])
    return ir.Graph([], copy.outputs, nodes=[copy], name=name)


def loss_alone(graph: SwitchedGraph, layer: str, batches: Sequence[Feeds], wanted: Sequence[Outputs]) -> float:
    """Return the relative error of the outputs if this layer alone is in int8: the geometric mean of the root mean
    square over samples, and of that of all samples at once, which those with the largest answers decide.

    The squares of such errors add up, nearly. What an int8 graph gains from sparing one layer is a small difference of
    two large errors, and puts the layers in a worse order.
    """
    run = graph.run_alone(layer)
    errors: dict[str, list[NDArray[np.float64]]] = {}  # by output, of each sample: its error and its size
    for found, exact in zip(map(run, batches), wanted, strict=True):
        for name, values in exact.items():
            both = found[name] - values, values
            errors.setdefault(name, []).append(np.stack([norms(each.astype(np.float64)) for each in both]))
    pairs = [np.maximum(np.concatenate(parts, axis=1), TINY) for parts in errors.values()]
    of_each = np.mean([np.square(error / size) for error, size in pairs])
    of_all = np.mean([np.square(error).sum() / np.square(size).sum() for error, size in pairs])
    return float((of_each * of_all) ** 0.25)


class LayerName(str):
    def packed(self) -> Self:
        return self


@dataclass(frozen=True)
class LayersAlone(Work[LayerName, LossAlone]):
    """Measure what the outputs for some batches lose if one layer alone is in int8."""

    folder: Path
    rounding: Rounding
    batches: Sequence[Feeds]

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[LayerName], LossAlone]]:
        graph = load_graph(self.folder / "model.onnx")
        wanted = list(map(run_optimized(graph, threads), self.batches))
        switched = SwitchedGraph(graph, self.rounding, arithmetic_nodes(graph, self.rounding.kept), threads)
        yield lambda layer: (layer, loss_alone(switched, layer, self.batches, wanted))


class OnCluster:
    """Tries layers on the machines of a cluster: single ones side by side, and sets of them over parts of the samples.

    The graphs go there as files in the folder `scratch`.
    """

    def __init__(self, cluster: Cluster, graph: onnx.ModelProto, rounding: Rounding, scratch: Path) -> None:
        self._cluster, self._rounding, self._scratch = cluster, rounding, scratch
        self._folder = self._written(graph)
        self.exact = self._running(self._folder)

    def losses_alone(self, layers: Iterable[str], batches: Sequence[Feeds]) -> Iterator[LossAlone]:
        return spread(LayersAlone(self._folder, self._rounding, batches), map(LayerName, layers), self._cluster)

    def running(self, graph: onnx.ModelProto) -> OutputsOf | None:
        return self._running(self._written(graph))

    def _running(self, folder: Path) -> OutputsOf | None:
        return outputs_on(GraphWork(folder, optimized=True), self._cluster)

    def _written(self, graph: onnx.ModelProto) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        save_graph(graph, folder / "model.onnx")
        return folder


@dataclass(frozen=True)
class LayerTrial:
    """Says what the outputs lose with sets of layers in floating point, and with one layer alone in int8."""

    checks: Checks
    rounding: Rounding
    convert: Callable[[Collection[str]], onnx.ModelProto]  # writes the graph with some layers spared
    on_cluster: OnCluster | None = None

    def losses_alone(self, layers: Sequence[str]) -> Iterator[LossAlone]:
        """Yield each layer with the relative error of the outputs if it alone is in int8."""
        checks = self.checks
        if self.on_cluster:
            yield from self.on_cluster.losses_alone(layers, checks.batches)
            return
        for start in range(0, len(layers), TOGETHER):
            together = layers[start:][:TOGETHER]
            switched = SwitchedGraph(checks.graph, self.rounding, together)
            yield from ((layer, loss_alone(switched, layer, checks.batches, checks.wanted)) for layer in together)

    def check(self, spared: Collection[str], work: float) -> Step:
        """Say what is lost with these layers in floating point."""
        written = self.convert(spared)
        if self.on_cluster:  # the exact graph shows the shapes, which are the same
            return self.checks.check_run(self.checks.exact, len(spared), work, self.on_cluster.running(written))
        return self.checks.check_run(run_optimized(written), len(spared), work)

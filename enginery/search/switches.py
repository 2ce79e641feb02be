"""A graph in int8 or fp8 in which each layer can be switched to floating point, so that one session tries them all."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from enginery.data.feeds import Feeds, Outputs, Run
from enginery.graph.as_written import open_session, run_graph
from enginery.quantization.placement import Placement
from enginery.quantization.write_int8 import Range, Rounded, Writer, grid_for

TINY = 1e-12
Site = tuple[str, str, int]  # a tensor that is rounded for the input of a node, by names


class SwitchedGraph:
    """It rounds where `write_int8` does. Layers are arithmetic: what only moves numbers follows those it feeds."""

    def __init__(
        self,
        model: onnx.ModelProto,
        ranges: Mapping[str, Range],
        kept: Collection[str],
        largest: int,
        rounded: Rounded | None = None,
        precision: str = "int8",
        threads: int = 0,
    ) -> None:
        """Leave the nodes of the names in `kept` in floating point, whatever is switched."""
        writer = Writer(model, kept, precision)
        self._untouched, self._kept = writer.model.clone(), frozenset(kept)
        self.layers = [node.name or "" for node in writer.placement.arithmetic]
        self._graph = writer.model.graph
        self._switches: dict[Site, str] = {}
        for node in writer.placement.products:
            weights = node.inputs[1]
            writer.round_weights(node, largest, rounded)
            if weights is not None and weights is not node.inputs[1]:
                self._graph.initializers.setdefault(weights.name or "", weights)
                self._add_switch(weights, node, 1)
        for group in writer.groups:
            writer.round_activations(group, grid_for(group, ranges, precision))
            for value, readers in group.items():
                for node, index in readers:
                    self._add_switch(value, node, index)
        # It takes a third of the time if it is optimized. What is switched cannot become int8 by that.
        optimized = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._session = open_session(ir.to_proto(writer.model), optimized, threads)

    def run_with(self, spared: Iterable[str]) -> Run:
        """Return what runs the graph with these layers in floating point, beside those that always are."""
        rounded = set(self._sites(spared))
        switches = {name: np.asarray(site in rounded) for site, name in self._switches.items()}
        return lambda feeds: run_graph(self._session, {**feeds, **switches})

    def _sites(self, spared: Iterable[str]) -> Iterator[Site]:
        placement = Placement(self._untouched, self._kept | set(spared))
        for group in placement.groups():
            for value, readers in group.items():
                yield from ((value.name or "", node.name or "", index) for node, index in readers)
        for node in placement.products:
            if node.inputs[1] is not None:
                yield node.inputs[1].name or "", node.name or "", 1

    def _add_switch(self, exact: ir.Value, node: ir.Node, index: int) -> None:
        """Let the node read what is rounded or what is exact, as an input of the graph says."""
        site = (exact.name or "", node.name or "", index)
        name = self._switches[site] = f"switch.{len(self._switches)}"
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


def _returning(value: ir.Value | None, name: str) -> ir.Graph:
    copy = ir.node("Identity", [value], outputs=[ir.val(name)])
    return ir.Graph([], copy.outputs, nodes=[copy], name=name)


def loss_alone(graph: SwitchedGraph, layer: str, batches: Sequence[Feeds], wanted: Sequence[Outputs]) -> float:
    """Return the relative error of the outputs if this layer alone is in int8: the geometric mean of the root mean
    square over samples, and of that of all samples at once, which those with the largest answers decide.

    The squares of such errors add up, nearly. What an int8 graph gains from sparing one layer is a small difference of
    two large errors, and puts the layers in a worse order.
    """
    run = graph.run_with([name for name in graph.layers if name != layer])
    errors: dict[str, list[NDArray[np.float64]]] = {}  # by output, of each sample: its error and its size
    for found, exact in zip(map(run, batches), wanted, strict=True):
        for name, values in exact.items():
            errors.setdefault(name, []).append(np.stack([_norms(found[name] - values), _norms(values)]))
    pairs = [np.maximum(np.concatenate(parts, axis=1), TINY) for parts in errors.values()]
    of_each = np.mean([np.square(error / size) for error, size in pairs])
    of_all = np.mean([np.square(error).sum() / np.square(size).sum() for error, size in pairs])
    return float((of_each * of_all) ** 0.25)


def _norms(values: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(values.reshape(len(values), -1).astype(np.float64), axis=1))

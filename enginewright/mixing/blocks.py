"""Cut a graph into blocks: parts that a single tensor enters and a single tensor leaves.

Between two blocks of different types only one tensor changes its type. Inside a block, as between a convolution and the
residual sum that reads it, several would.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir

from enginewright.core.precisions import PrecisionName
from enginewright.engine.layer_names import node_names
from enginewright.engine.record import LayerTime
from enginewright.graph.shapes import as_ir
from enginewright.mixing.records import BlockTimes
from enginewright.mixing.ways import BlocksTimes, Way
from enginewright.quantization.conversion import kept_nodes
from enginewright.quantization.in_dialect import Ingredients, nodes_in_floats
from enginewright.quantization.placement import FLOATS, PRODUCTS, arithmetic_nodes

Block = tuple[str, ...]  # the names of its nodes


class Parts(NamedTuple):
    """The blocks of a graph, and the number of the block that each name belongs to."""

    blocks: list[Block]
    places: dict[str, int]

    def all_in(self, name: PrecisionName) -> Way:
        return (name,) * len(self.blocks)

    def floating(self, way: Way) -> dict[PrecisionName, tuple[str, ...]]:
        """Return the names of the nodes that are in each float type on this way."""
        found: dict[PrecisionName, tuple[str, ...]] = {}
        for name, block in zip(way, self.blocks, strict=True):
            if name != "int8":
                found[name] = found.get(name, ()) + block
        return found

    def timed(self, times: BlocksTimes) -> tuple[BlockTimes, ...]:
        """Return what the record says of each block."""
        return tuple(
            BlockTimes(first=block[0], last=block[-1], milliseconds={name: times[name][number] for name in times})
            for number, block in enumerate(self.blocks)
        )


def parts_of(model: onnx.ModelProto, int8: Ingredients) -> Parts:
    """Cut the graph that int8 is made of. Nodes that int8 leaves in floating point have no say in where."""
    high = nodes_in_floats("int8", model, int8.ranges.amax, int8.wanted)
    beyond = {*high, *kept_nodes(int8.keep, model), *int8.spared}
    blocks = blocks_of(model, arithmetic_nodes(model, beyond))
    return Parts(blocks, places_of(model, blocks))


def blocks_of(model: onnx.ModelProto, arithmetic: Collection[str]) -> list[Block]:
    """Return the blocks in their order. Each has at least one node that could be in int8."""
    graph = as_ir(model).graph
    nodes = list(graph)
    last_reader = _last_readers(nodes, graph.outputs)
    crossing: set[ir.Value] = set()  # what products have made, and what is still to be read
    derived: set[ir.Value] = set()
    starts, latest, computes = [0], None, False
    for number, node in enumerate(nodes):
        if node.name in arithmetic:
            if latest is not None and computes:
                starts.append(latest)
            latest, computes = None, True
        # A mask, a table of constants or a shape may be read by all blocks, and changes no type.
        if node.op_type in PRODUCTS or derived.intersection(node.inputs):
            made = {value for value in node.outputs if value.dtype in FLOATS}
            derived |= made
            crossing |= made
        crossing = {value for value in crossing if last_reader.get(value, -1) > number}
        if len(crossing) <= 1:
            latest = number + 1
    ends = [*starts[1:], len(nodes)]
    return [tuple(node.name or "" for node in nodes[start:end]) for start, end in zip(starts, ends, strict=True)]


def _last_readers(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value]) -> dict[ir.Value | None, int]:
    found = {value: number for number, node in enumerate(nodes) for value in node.inputs}
    return found | dict.fromkeys(outputs, len(nodes))


def places_of(model: onnx.ModelProto, blocks: Sequence[Block]) -> dict[str, int]:
    """Return the number of the block of each name: of a node, or of an output, after which compilers name layers."""
    places = {name: number for number, nodes in enumerate(blocks) for name in nodes}
    outputs = {tensor.name for tensor in model.graph.output}
    made = {name: places[node.name] for node in model.graph.node for name in node.output if name in outputs}
    return made | places


def times_of_blocks(layers: Sequence[LayerTime], places: Mapping[str, int]) -> list[float]:
    """Return the milliseconds of each block. What a compiler adds, such as a cast, belongs to the next block."""
    times, waiting, place = [0.0] * (max(places.values()) + 1), 0.0, 0
    for layer in layers:
        named = _place(layer, places)
        if named is None:
            waiting += layer.milliseconds
        else:
            place = named
            times[place] += waiting + layer.milliseconds
            waiting = 0.0
    times[place] += waiting
    return times


def share_named(layers: Sequence[LayerTime], places: Mapping[str, int]) -> float:
    """Return the share of the blocks that have a layer by name. It is small for layers of another graph."""
    return len({_place(layer, places) for layer in layers} - {None}) / (max(places.values()) + 1)


def _place(layer: LayerTime, places: Mapping[str, int]) -> int | None:
    return next((places[name] for name in node_names(layer) if name in places), None)

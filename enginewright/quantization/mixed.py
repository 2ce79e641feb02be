"""Write a graph that is in int8 but for some nodes, which are in fp32, fp16 or bf16."""

import re
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import Keep
from enginewright.core.precisions import PrecisionName
from enginewright.core.scratch import scratch_folder
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.quantization.calibration.provenance import Calibration
from enginewright.quantization.cast import cast
from enginewright.quantization.dialect import Dialect
from enginewright.quantization.in_dialect import Ingredients, is_written_here, quantize_in_dialect, rest_of


def types_to_mix(floating: PrecisionName, keep: Keep, wanted: Dialect) -> tuple[PrecisionName, ...]:
    """Return int8, this float, and the float that the compiler's int8 graph has by itself.

    Refuse a float that such a graph cannot have.
    """
    rest = rest_of(keep, wanted)
    if floating != rest and not is_written_here("int8", keep, wanted):
        raise EnginewrightError(f"mix.best.floating: here int8 can be mixed with {rest} alone, not with {floating}")
    return tuple(dict.fromkeys(("int8", floating, rest)))


def quantize_beside(
    floating: Mapping[PrecisionName, Collection[str]], given: Ingredients
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the int8 graph in which the nodes of these names are in other precisions.

    Beside it, return the nodes that eight bits cannot hold. They, and what the user and a search leave in floating
    point, stay as they are in the int8 graph.
    """
    mixed = given._replace(spared=[*given.spared, *chain(*floating.values())])
    with scratch_folder() as scratch:
        for precision, nodes in floating.items():
            if precision != rest_of(given.keep, given.wanted):
                mixed = _with_nodes_in(precision, nodes, mixed, scratch / f"{precision}.onnx")
        return quantize_in_dialect("int8", mixed)


def _with_nodes_in(precision: PrecisionName, nodes: Collection[str], given: Ingredients, path: Path) -> Ingredients:
    """Write the graph with these nodes in another precision, and return it with the ranges of what is new in it."""
    names = [node.name for node in load_graph(given.graph).graph.node]
    others = Keep(op_types=(), nodes=tuple(re.escape(name) for name in names if name not in set(nodes)))
    model = cast(given.graph, precision, others, given.sample)
    save_graph(model, path)
    return given._replace(graph=path, ranges=_with_casts(given.ranges, model))


def _with_casts(ranges: Calibration, model: onnx.ModelProto) -> Calibration:
    """Return the ranges with those of what Casts return, which may be rounded, too: those of what they read."""
    amax, lowest = dict(ranges.amax), dict(ranges.lowest)
    for node in model.graph.node:
        if node.op_type == "Cast":
            for known in (amax, lowest):
                if node.input[0] in known:
                    known.setdefault(node.output[0], known[node.input[0]])
    return ranges.model_copy(update={"amax": amax, "lowest": lowest})

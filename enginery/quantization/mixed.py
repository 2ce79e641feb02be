"""Write a graph that is in int8 but for some nodes, which are in fp32, fp16 or bf16."""

import re
from collections.abc import Collection

import onnx

from enginery.core.errors import EngineryError
from enginery.core.params.precisions import Keep
from enginery.core.scratch import scratch_folder
from enginery.graph.onnx_file import load_graph, save_graph
from enginery.quantization.calibration.provenance import Calibration
from enginery.quantization.cast import cast
from enginery.quantization.dialect import Dialect
from enginery.quantization.in_dialect import Ingredients, is_written_here, quantize_in_dialect, rest_of


def require_mixable(precision: str, keep: Keep, wanted: Dialect) -> None:
    """Refuse a precision that the compiler's int8 graph cannot have beside it."""
    rest = rest_of(keep, wanted)
    if precision != rest and not is_written_here("int8", keep, wanted):
        raise EngineryError(f"mix.best.floating: here int8 can be mixed with {rest} alone, not with {precision}")


def quantize_beside(
    precision: str, floating: Collection[str], given: Ingredients
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the int8 graph in which the nodes of the names in `floating` are in another precision.

    Beside it, return the nodes that eight bits cannot hold. They, and what the user and a search leave in floating
    point, stay as they are in the int8 graph.
    """
    mixed = given._replace(spared=[*given.spared, *floating])
    if precision == rest_of(given.keep, given.wanted) or not floating:
        return quantize_in_dialect("int8", mixed)
    names = [node.name for node in load_graph(given.graph).graph.node]
    others = Keep(op_types=(), nodes=tuple(re.escape(name) for name in names if name not in set(floating)))
    with scratch_folder() as scratch:
        path = scratch / "model.onnx"
        half = cast(given.graph, precision, others, given.sample)
        save_graph(half, path)
        return quantize_in_dialect("int8", mixed._replace(graph=path, ranges=_with_casts(given.ranges, half)))


def _with_casts(ranges: Calibration, model: onnx.ModelProto) -> Calibration:
    """Return the ranges with those of what Casts return, which may be rounded, too: those of what they read."""
    amax, lowest = dict(ranges.amax), dict(ranges.lowest)
    for node in model.graph.node:
        if node.op_type == "Cast":
            for known in (amax, lowest):
                if node.input[0] in known:
                    known.setdefault(node.output[0], known[node.input[0]])
    return ranges.model_copy(update={"amax": amax, "lowest": lowest})

"""Write a graph that is in int8 but for some nodes, which are in fp32, fp16 or bf16."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import onnx

from enginery.core.errors import EngineryError
from enginery.core.params.precisions import Keep
from enginery.core.scratch import scratch_folder
from enginery.graph.onnx_file import load_graph, save_graph
from enginery.quantization.calibration.provenance import Calibration
from enginery.quantization.cast import cast
from enginery.quantization.dialect import Dialect
from enginery.quantization.in_dialect import is_written_here, quantize_in_dialect, rest_of
from enginery.quantization.write_int8 import Rounded


def require_mixable(precision: str, keep: Keep, wanted: Dialect) -> None:
    """Refuse a precision that the compiler's int8 graph cannot have beside it."""
    rest = rest_of(keep, wanted)
    if precision != rest and not is_written_here("int8", keep, wanted):
        raise EngineryError(f"mix.best.floating: here int8 can be mixed with {rest} alone, not with {precision}")


def quantize_beside(
    precision: str,
    floating: Collection[str],
    source: Path,
    calibrated: Calibration,
    sizes: Mapping[str, int],
    wanted: Dialect,
    keep: Keep,
    spared: Collection[str] = (),
    rounded: Rounded | None = None,
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the int8 graph in which the nodes of the names in `floating` are in another precision.

    Beside it, return the nodes that eight bits cannot hold. They, and what `keep` and a search leave in floating point,
    stay as they are in the int8 graph.
    """
    if precision == rest_of(keep, wanted) or not floating:
        return quantize_in_dialect("int8", source, calibrated, sizes, wanted, keep, [*spared, *floating], rounded)
    names = [node.name for node in load_graph(source).graph.node]
    others = Keep(op_types=(), nodes=tuple(re.escape(name) for name in names if name not in set(floating)))
    with scratch_folder() as scratch:
        path = scratch / "model.onnx"
        half = cast(source, precision, others, sizes)
        save_graph(half, path)
        # A Cast's result may be rounded, too: it has the range of what the Cast reads.
        amax, lowest = dict(calibrated.amax), dict(calibrated.lowest)
        for node in half.graph.node:
            if node.op_type == "Cast":
                for ranges in (amax, lowest):
                    if node.input[0] in ranges:
                        ranges.setdefault(node.output[0], ranges[node.input[0]])
        known = calibrated.model_copy(update={"amax": amax, "lowest": lowest})
        return quantize_in_dialect("int8", path, known, sizes, wanted, keep, [*spared, *floating], rounded)

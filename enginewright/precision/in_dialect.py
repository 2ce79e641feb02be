"""Quantize a graph as the compiler at hand wants it: by our own rules for a CPU, by ModelOpt's for NVIDIA's GPUs. In
blocks of numbers, the graph is the same for all."""

from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, PrecisionName
from enginewright.core.files import scratch_folder
from enginewright.core.params.precisions import Keep, Rest
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.graph.data_apart import with_bodies
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.passes import changed_by, for_one_compiler
from enginewright.graph.passes.find import Pass
from enginewright.precision.blocks import Written, write_blocks
from enginewright.precision.calibration.cache import Calibration, require_match, require_tensors, with_ranges
from enginewright.precision.cast import cast
from enginewright.precision.dialect import Dialect
from enginewright.precision.floats import kept_nodes, nodes_in_floats
from enginewright.precision.placement import ends_of_attention
from enginewright.precision.quantize import activations, quantize, quantized_activations, set_weights
from enginewright.precision.records import RESCUE, Rescue, Search, digest_of, read_rounded
from enginewright.precision.write_int8 import Bounds, Rounding, tensors_in_int8, write_int8

REWRITES: dict[tuple[str, str], tuple[Pass, ...]] = {  # by compiler and precision
    ("tensorrt", "bf16"): (for_one_compiler.spell_out_hard_swish,),
    ("tensorrt", "int8"): (for_one_compiler.pool_for_mean,),
    ("cpu", "bf16"): (for_one_compiler.drop_idle_strides,),
    ("cpu", "int8"): (for_one_compiler.pad_before_pooling, for_one_compiler.drop_idle_strides),
}
UNKNOWN: dict[tuple[str, str], Pass] = {  # operators that a compiler lacks or mistakes
    ("tensorrt", "Col2Im"): for_one_compiler.spell_out_col2im,
    ("cpu", "Gather"): for_one_compiler.count_axes_from_end,
}
WITHOUT_KERNEL = {("tensorrt", "bf16"): "ConvTranspose"}  # github.com/NVIDIA/TensorRT/issues/4829
NOTHING = Keep(op_types=(), nodes=())
NO_KERNEL = "the compiler has no kernel for it"


def rewritten(graph: onnx.ModelProto, dialect: Dialect, precision: str) -> onnx.ModelProto | None:
    """Return the graph without what one compiler has trouble with, or None where it has nothing of it."""
    operators = {node.op_type for each in with_bodies(graph.graph) for node in each.node}
    unknown = [UNKNOWN[dialect.compiler, name] for name in operators if (dialect.compiler, name) in UNKNOWN]
    rewrites = [*REWRITES.get((dialect.compiler, precision), ()), *unknown]
    return changed_by(graph, *rewrites)


def rest_of(keep: Keep, dialect: Dialect) -> Rest:
    return dialect.rest if keep.rest == "auto" else keep.rest


def is_written_here(precision: str, keep: Keep, dialect: Dialect) -> bool:
    """Tell whether our own rules say where Q/DQ nodes stand."""
    return precision == "int8" and dialect.compiler == "cpu" and rest_of(keep, dialect) == "fp32"


def value_ranges(calibrated: Calibration, dialect: Dialect) -> dict[str, Bounds]:
    channels = calibrated.channels if dialect.by_channel else {}
    return {
        name: Bounds(calibrated.lowest.get(name, -value), value, np.array(channels[name]) if name in channels else None)
        for name, value in calibrated.amax.items()
    }


class Ingredients(NamedTuple):
    """All that an int8 or fp8 graph is made of."""

    graph: Path
    ranges: Calibration  # of all that is quantized
    sample: Feeds  # one
    dialect: Dialect
    keep: Keep  # what the user leaves in floating point
    spared: tuple[str, ...] = ()  # the nodes that a rescue and a search leave there
    rounded: Mapping[str, NDArray[np.int8]] = {}  # weights that are rounded already; others take the nearest byte

    @property
    def rest(self) -> Rest:
        return rest_of(self.keep, self.dialect)

    def beyond(self, precision: str, graph: onnx.ModelProto) -> dict[str, str]:
        """Return the nodes that stay in floating point whatever the user keeps there, each with the reason."""
        return nodes_in_floats(precision, graph, self.ranges.amax, self.dialect, self.rest)

    def kept(self, precision: str, graph: onnx.ModelProto) -> frozenset[str]:
        """Return the names of all nodes that stay in floating point."""
        return frozenset({*self.beyond(precision, graph), *kept_nodes(self.keep, graph), *self.spared})


def open_calibrated(folder: Path, calibrated: Path, samples: SampleSet, dialect: Dialect, keep: Keep) -> Ingredients:
    """Refuse ranges that are of another graph or of other samples."""
    graph, ranges = folder / "model.onnx", Calibration.read(calibrated / "calibration.json")
    require_match(ranges, calibrated / "calibration.cache", graph, samples)
    return Ingredients(graph, ranges, samples.cycled(1), dialect, keep)


def open_rescued(
    simplified: Path, calibrated: Path, rescued: Path | None, samples: SampleSet, dialect: Dialect, keep: Keep
) -> Ingredients:
    """Return what was rescued, and what was calibrated where nothing was, or where there was no rescue (None)."""
    if rescued is None:
        return open_calibrated(simplified, calibrated, samples, dialect, keep)
    graph, ranges = (rescued, rescued) if (rescued / "model.onnx").exists() else (simplified, calibrated)
    given = open_calibrated(graph, ranges, samples, dialect, keep)
    return given._replace(rounded=read_rounded(rescued), spared=Rescue.read(rescued / RESCUE).spared)


def spare_searched(given: Ingredients, found: Path, rescued: Path) -> Ingredients:
    """Leave in floating point what the search in a file has found, in the type that it has found. Refuse what it found
    with another graph, other ranges or another rescue."""
    search, ranges = Search.read(found), given.ranges
    if (search.calibration, search.model, search.rescue) != (*ranges.origin, digest_of(rescued)):
        raise EnginewrightError(
            f"{found} was searched with another calibration, model or rescue: run `dvc repro search` again"
        )
    keep = given.keep.model_copy(update={"rest": search.rest}) if search.rest else given.keep
    return given._replace(spared=(*given.spared, *search.spared), keep=keep)


def for_compiler(precision: str, given: Ingredients, folder: Path) -> Ingredients:
    """Return the same with the graph as the compiler takes it, which is written into the folder if it is another."""
    graph = rewritten(load_graph(given.graph), given.dialect, precision)
    if graph is None:
        return given
    save_graph(graph, folder / "model.onnx")
    return given._replace(graph=folder / "model.onnx")


def rounding_of(precision: str, given: Ingredients, graph: onnx.ModelProto) -> Rounding:
    """Return what our own rules round in a graph, and how. Refuse the ranges if one of that is missing."""
    kept, dialect = given.kept(precision, graph), given.dialect
    require_tensors(given.ranges, tensors_in_int8(graph, kept, dialect.exact_sums))
    largest = dialect.largest_weight if precision == "int8" else PRECISIONS[precision].largest
    return Rounding(value_ranges(given.ranges, dialect), kept, largest, given.rounded, precision, dialect.exact_sums)


def quantize_in_dialect(precision: str, given: Ingredients) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the graph with Q/DQ nodes where the compiler wants them, and the nodes that eight bits cannot hold. Refuse
    the ranges if one of what is rounded is missing."""
    graph, dialect = load_graph(given.graph), given.dialect
    high = given.beyond(precision, graph)
    if is_written_here(precision, given.keep, dialect):
        made = write_int8(graph, rounding_of(precision, given, graph))
    else:
        made = quantize(
            given.graph,
            precision,
            dict.fromkeys(activations(graph), 1.0) | given.ranges.amax,  # ModelOpt leaves out what has no range
            given.keep.naming((*high, *given.spared, *ends_of_attention(graph, given.spared))),
            given.rest,
            given.sample,
        )
        if precision == "int8":
            made = set_weights(made, dialect.largest_weight, given.rounded)
        require_tensors(given.ranges, quantized_activations(made, graph))
    if not given.spared and all(node.op_type != "QuantizeLinear" for node in made.graph.node):
        why = next((f"{name} and others: {reason}" for name, reason in high.items()), "keep leaves it nothing to round")
        raise EnginewrightError(f"{precision} can hold nothing of this graph ({why}): delete precisions.{precision}")
    return made, high


def cast_in_dialect(
    precision: str, source: Path, sample: Feeds, dialect: Dialect, keep: Keep
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the graph in fp16 or bf16, and the nodes that stay in float32 since the compiler has no kernel."""
    without = WITHOUT_KERNEL.get((dialect.compiler, precision))
    found = [node.name for node in load_graph(source).graph.node if node.op_type == without]
    return cast(source, precision, keep.naming(found), sample), dict.fromkeys(found, NO_KERNEL)


def write_blocks_in_dialect(
    precision: str, source: Path, calibrated: Calibration | None, sample: Feeds, dialect: Dialect, keep: Keep
) -> Written:
    """Return the graph with products of matrices in blocks, and everything else in the type of the rest."""
    graph, ranges = load_graph(source), {}
    kept = kept_nodes(keep, graph)
    if calibrated:
        read = {node.name: node.input[0] for node in graph.graph.node if node.op_type in ("MatMul", "Gemm")}
        ranges = {node: calibrated.amax[name] for node, name in read.items() if name in calibrated.amax}
    if rest_of(keep, dialect) == "fp16":
        graph = cast(source, "fp16", NOTHING, sample)
    written = write_blocks(graph, precision, ranges, kept)
    if not written.in_blocks:
        why = "; ".join(f"{name}: {reason}" for name, reason in written.stay.items()) or "it has none with weights"
        raise EnginewrightError(
            f"{precision} is for products of matrices, and the graph has none that fits ({why}): delete "
            f"precisions.{precision}"
        )
    return written


def types_to_mix(floating: PrecisionName, keep: Keep, dialect: Dialect) -> tuple[PrecisionName, ...]:
    """Return int8, this float, and the one that the compiler's int8 graph has by itself. Refuse what it cannot have."""
    rest = rest_of(keep, dialect)
    if floating != rest and not is_written_here("int8", keep, dialect):
        raise EnginewrightError(f"mix.best.floating: here int8 can be mixed with {rest} alone, not with {floating}")
    return tuple(dict.fromkeys(("int8", floating, rest)))


def quantize_beside(
    floating: Mapping[PrecisionName, Collection[str]], given: Ingredients
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return the int8 graph in which the nodes of these names are in other precisions, and the nodes that eight bits
    cannot hold. These, and what the user and a search leave in floating point, stay as they are in the int8 graph."""
    mixed = given._replace(spared=(*given.spared, *chain(*floating.values())))
    with scratch_folder() as scratch:
        for precision, nodes in floating.items():
            if precision != given.rest:
                path, names = scratch / f"{precision}.onnx", [node.name for node in load_graph(mixed.graph).graph.node]
                others = NOTHING.naming(name for name in names if name not in nodes)
                model = cast(mixed.graph, precision, others, given.sample)
                save_graph(model, path)
                known = value_ranges(mixed.ranges, mixed.dialect)
                for cast_node in model.graph.node:  # what it returns has the range of what it reads
                    if cast_node.op_type == "Cast" and cast_node.input[0] in known:
                        known.setdefault(cast_node.output[0], known[cast_node.input[0]])
                mixed = mixed._replace(graph=path, ranges=with_ranges(mixed.ranges, known))
        return quantize_in_dialect("int8", mixed)

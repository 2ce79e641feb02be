"""Equalize channels: move a scale for each from the weights that write a tensor to those that read it.

A tensor has one scale for all channels, so that those with small numbers get few of the 256 steps; weights have one for
each output channel. Between convolutions this is called cross-layer equalization, behind a normalization SmoothQuant.
onnxsim's equalization knows no depthwise convolutions, and NNCF's SmoothQuant leaves Mul nodes in graphs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.data.feeds import TINY, Feeds, Outputs
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.passes.find import Inserter, remove_unused, sizes_of
from enginewright.graph.shapes import as_ir
from enginewright.precision.placement import FLOATS, PRODUCTS, array_of, has_rows, is_average
from enginewright.precision.write_int8 import LARGEST, LEVELS, Bounds, dtype_of

ELEMENTWISE = {"Identity", "LeakyRelu", "Relu"}  # keep a positive factor of a channel, as averages and MaxPool do
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SMALLEST = 0.01  # of the largest channel: one that was hardly seen may be larger on other samples

Floats = NDArray[np.float64]


class Seam(NamedTuple):
    """A tensor whose channels may be scaled, and what lies on both sides of it: weights that can hold the scales."""

    written: list[tuple[ir.Value, int]]  # constants, with the axis that the channels lie along
    readers: list[tuple[ir.Node, str]]  # with the tensor that each reads
    axes: dict[str, int]  # that the channels lie along, in each tensor from the one written to those that are read


class Channels(NamedTuple):
    """The largest magnitude of each channel of a tensor, the lowest number or 0, and the mean square."""

    largest: Floats
    lowest: Floats
    power: Floats


def equalize(
    model: onnx.ModelProto, kept: Collection[str], batches: Iterable[Feeds], ranges: Mapping[str, Bounds]
) -> tuple[onnx.ModelProto, dict[str, Bounds]] | None:
    """Return the graph with scaled channels, and the ranges of the tensors that have them; or None where that is not
    possible or promises nothing. No Mul is added for the nodes of the names in `kept`, which stay in floating point.
    What has no range is not scaled."""
    changed = as_ir(model)
    divided = _divide_by_ones(changed, kept)
    copied = {made.name or "": value.name or "" for made, value, _ in divided}
    ranges = {**ranges, **{name: ranges[source] for name, source in copied.items() if source in ranges}}
    seams = [seam for seam in find_seams(changed) if ranges.keys() >= {name for _, name in seam.readers}]
    if not seams:
        return None
    channels = _channels(ir.to_proto(changed), seams, batches, ranges)
    scaled = dict[str, Bounds]()
    for seam in seams:
        scale = _best_scale(seam, [channels[name] for _, name in seam.readers])
        if np.ptp(scale) > 0:
            scaled |= {name: _scaled(ranges[name], channels[name], scale) for name in seam.axes if name in channels}
            for value, axis in seam.written:
                shape = [1] * max(1, array_of(value).ndim)  # a scalar becomes a number for each channel
                shape[axis] = -1
                _multiply(value, (1 / scale).reshape(shape))
            for node, _ in seam.readers:
                weights = node.inputs[1]
                assert weights is not None
                by_output = weights_by_output(node, array_of(weights))
                factors = np.broadcast_to(scale.reshape(len(by_output), 1, -1, 1), by_output.shape)
                _multiply(weights, weights_as_given(node, factors, array_of(weights).shape))
    for made, value, ones in divided:
        if np.all(array_of(ones) == 1):
            ir.convenience.replace_all_uses_with(made, value)
    remove_unused(changed)
    return (ir.to_proto(changed), scaled) if scaled else None


def _divide_by_ones(model: ir.Model, kept: Collection[str]) -> list[tuple[ir.Value, ir.Value, ir.Value]]:
    """Multiply by ones, which may become scales, what products of matrices read beside others that can take none.
    Return what each Mul that is added makes, what it multiplies, and the ones."""
    reached = {node for seam in find_seams(model) for node, _ in seam.readers}
    insert, added = Inserter(model), []
    for value in [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]:
        last, uses = len(value.shape or ()) - 1, value.uses()
        products = [(node, index) for node, index in uses if node.op_type != "Conv" and node.name not in kept]
        readers = [node for node, index in products if takes_scales(node, index, last, value)]
        size = value.shape[last] if readers and value.shape else None
        if not isinstance(size, int) or len(readers) == len(uses) or reached.intersection(readers):
            continue
        ones = insert.constant(readers[0], f"{value.name}.factors", np.ones(size, dtype_of(value)))
        divided = insert.behind(value, "Mul", [value, ones], f"{value.name}.divided")
        divided.shape, divided.type = value.shape, value.type
        for node in readers:
            node.replace_input_with(0, divided)
        added.append((divided, value, ones))
    return added


def find_seams(model: ir.Model) -> list[Seam]:
    return [seam for node in model.graph if (seam := _seam_behind(node)) and seam.readers]


def _seam_behind(writer: ir.Node) -> Seam | None:
    """Return the seam if all that reads the channels can take their scales."""
    found = _written_by(writer)
    if found is None:
        return None
    written, axis = found
    seam, waiting = Seam(written, [], {}), [(writer.outputs[0], axis)]
    while waiting:
        value, axis = waiting.pop()
        seam.axes[value.name or ""] = axis
        if value.is_graph_output():
            return None
        for node, index in value.uses():
            if node.graph is not writer.graph:  # the body of an If or a Loop, whose tensors nobody measures
                return None
            if takes_scales(node, index, axis, value):
                seam.readers.append((node, value.name or ""))
            elif (behind := _axis_behind(node, index, axis)) is not None:
                waiting.append((node.outputs[0], behind))
            elif node.op_type == "Add" and (bias := _own(node.inputs[1 - index])) and _lies_along(bias, axis, value):
                seam.written.append((bias, axis - len(value.shape or ())))
                waiting.append((node.outputs[0], axis))
            else:
                return None
    return seam


def _written_by(node: ir.Node) -> tuple[list[tuple[ir.Value, int]], int] | None:
    """Return the constants by which a node writes its channels, and the axis of these in its output."""
    shape = node.outputs[0].shape
    if node.domain or shape is None:
        return None
    last = len(shape) - 1
    match node.op_type:
        case "Conv":
            axes, axis = (0, 0), 1
        case "Gemm":
            axes, axis = (0 if has_rows(node) else 1, -1), last
        case "MatMul" | "LayerNormalization" if node.attributes.get_int("axis", -1) in (-1, last):
            axes, axis = (-1, -1), last
        case "Mul":  # by the weights of an RMSNorm
            found = [own for value in node.inputs if (own := _own(value)) and _lies_along(own, last, node.outputs[0])]
            return ([(found[0], -1)], last) if found else None
        case _:
            return None
    given = [value for value in node.inputs[1:] if value is not None]
    if not given or not all(map(_own, given)):
        return None
    is_matrix = array_of(given[0]).ndim == 2
    fits = node.op_type in ("Conv", "LayerNormalization") or is_matrix
    return (list(zip(given, axes, strict=False)), axis) if fits else None


def takes_scales(node: ir.Node, index: int, axis: int, value: ir.Value) -> bool:
    """Tell whether its weights can hold the scales of its input's channels."""
    if node.op_type not in PRODUCTS - {"ConvTranspose"} or node.domain or index or not _own(node.inputs[1]):
        return False
    if node.op_type == "MatMul":
        fits = array_of(node.inputs[1]).ndim == 2 and axis == len(value.shape or ()) - 1
    else:
        fits = axis == 1 and not node.attributes.get_int("transA", 0)
    return fits and value.dtype in FLOATS


def _axis_behind(node: ir.Node, index: int, axis: int) -> int | None:
    """Return where a node that keeps a positive factor of each channel puts the channels, or None for another node."""
    shape, after = sizes_of(node.inputs[0]), node.outputs[0].shape
    match node.op_type:
        case _ if index:
            return None
        case "Transpose":  # without an order, it turns all axes around
            order = node.attributes.get_ints("perm")
            return order.index(axis) if order else len(after or ()) - 1 - axis
        case "Gather" if shape and (indices := node.inputs[1]) is not None and indices.shape is not None:
            chosen = node.attributes.get_int("axis", 0) % len(shape)  # as the first token is chosen from all
            return None if chosen == axis else axis + (len(indices.shape) - 1) * (chosen < axis)
        case "Flatten" | "Reshape" if axis == 1 and shape and after is not None and len(after) == 2:
            makes_rows = after[1] == shape[1] and all(size == 1 for size in shape[2:])  # of images of one pixel
            return 1 if makes_rows else None
        case _:
            keeps = node.op_type in ELEMENTWISE or (axis == 1 and (node.op_type == "MaxPool" or is_average(node)))
            return axis if keeps else None


def _lies_along(bias: ir.Value, axis: int, value: ir.Value) -> bool:
    """Tell whether an added constant has a number for each channel and else none."""
    given, array = value.shape, array_of(bias)
    place = axis - len(given or ()) + array.ndim
    return given is not None and place >= 0 and array.shape[place] == given[axis] == array.size


def _own(value: ir.Value | None) -> ir.Value | None:
    """Return a constant that nothing else reads."""
    return value if value is not None and value.const_value is not None and len(value.uses()) == 1 else None


def weights_by_output(node: ir.Node, array: NDArray[Any]) -> NDArray[Any]:
    """Return weights by group, output, input, and place in the kernel."""
    if node.op_type == "Conv":
        groups = node.attributes.get_int("group", 1)
        return array.reshape(groups, len(array) // groups, array.shape[1], -1)
    return (array if has_rows(node) else array.T)[None, :, :, None]


def weights_as_given(node: ir.Node, array: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Undo that."""
    if node.op_type == "Conv":
        return array.reshape(shape)
    rows = array.reshape(array.shape[1:3])
    return np.ascontiguousarray(rows if has_rows(node) else rows.T)


def _channels(
    model: onnx.ModelProto, seams: list[Seam], batches: Iterable[Feeds], ranges: Mapping[str, Bounds]
) -> dict[str, Channels]:
    """Measure the channels of what seams have and `ranges` know, as far as they lie within these."""
    axes = {name: axis for seam in seams for name, axis in seam.axes.items() if name in ranges}
    found: dict[str, list[Channels]] = {name: [] for name in axes}
    for arrays in tensors_of(model, list(axes), batches):
        for name, array in arrays.items():
            rows = np.moveaxis(array, axes[name], 0).reshape(array.shape[axes[name]], -1)
            amax, lowest = ranges[name].amax, np.minimum(rows.min(axis=1), 0.0)
            largest = np.minimum(np.maximum(rows.max(axis=1).astype(np.float64), -lowest), amax)
            power = np.square(rows, dtype=np.float64).mean(axis=1)
            found[name].append(Channels(largest, np.maximum(lowest, -amax), power))
    columns = {name: list(zip(*parts, strict=True)) for name, parts in found.items()}
    return {
        name: Channels(np.max(largest, axis=0), np.min(lowest, axis=0), np.mean(power, axis=0))
        for name, (largest, lowest, power) in columns.items()
    }


def _scaled(known: Bounds, channels: Channels, scale: Floats) -> Bounds:
    """Return the range once channels are divided. The known one is of all samples, and the channels are of some: so it
    is multiplied, not replaced."""

    def growth(side: Floats) -> float:
        before = float(np.abs(side).max())
        return float(np.abs(side / scale).max()) / before if before else 1.0

    of_each = None if known.channels is None else known.channels / scale
    return Bounds(known.lowest * growth(channels.lowest), known.amax * growth(channels.largest), of_each)


def _best_scale(seam: Seam, channels: list[Channels]) -> Floats:
    """Return the scales by which rounding costs the readers least, of some strengths on both sides: the squared error
    of a product is the step of its input by its weights, and the steps of its weights by its input."""
    largest = np.maximum.reduce([each.largest for each in channels])
    power = np.maximum.reduce([each.power for each in channels])
    if largest.max() < TINY:
        return np.ones_like(largest)
    largest = np.maximum(largest, SMALLEST * largest.max())
    weights = [weights_by_output(node, array_of(node.inputs[1]).astype(np.float64)) for node, _ in seam.readers]
    widest = np.maximum.reduce([np.abs(each).max(axis=(1, 3)).reshape(-1) for each in weights])
    widest = np.maximum(widest, SMALLEST * widest.max())
    tried: list[tuple[float, Floats]] = []
    for of_input, of_weights in product(STRENGTHS, STRENGTHS):
        scale = largest**of_input / widest**of_weights
        scale *= (largest / scale).max() / largest.max()  # which leaves the range of the tensor as it is
        tried.append((sum(_cost(each, scale, largest, power) for each in weights), scale))
    _, best = min(tried, key=lambda pair: pair[0])
    return best


def _cost(weights: Floats, scale: Floats, largest: Floats, power: Floats) -> float:
    """Return the squared error of a product's outputs. The weights are by group, output, input and place."""
    groups, _, inputs, places = weights.shape
    scaled = weights * scale.reshape(groups, 1, inputs, 1)
    of_input = ((largest / scale).max() / LEVELS) ** 2 * np.square(scaled).sum()
    steps = np.abs(scaled).max(axis=(2, 3)) / LARGEST
    of_weights = (np.square(steps) * (power / scale**2).reshape(groups, 1, inputs).sum(axis=2)).sum() * places
    return float(of_input + of_weights)


def _multiply(value: ir.Value, factors: Floats) -> None:
    array = array_of(value)
    scaled = (array * factors).astype(array.dtype)
    value.const_value = ir.tensor(scaled, name=value.name)
    value.shape = ir.Shape(scaled.shape)  # of a scalar, which becomes a number for each channel, another one


def tensors_of(model: onnx.ModelProto, names: list[str], batches: Iterable[Feeds]) -> Iterator[Outputs]:
    """Yield these tensors of each batch, also those within the graph."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    known = {tensor.name for tensor in (*model.graph.input, *model.graph.output)}
    inner = [onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in known]
    exposed.graph.output.extend(inner)
    run = partial(run_graph, open_as_written(exposed))
    for feeds in batches:
        found = {**feeds, **run(feeds)}
        yield {name: found[name] for name in names}

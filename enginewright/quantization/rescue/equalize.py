"""Equalize channels: move a scale for each from the weights that write a tensor to those that read it.

It keeps what the graph computes in float, and costs nothing at run time. A tensor has one scale for all channels, so
that those with small numbers get few of the 256 steps; weights have a scale for each output channel. Between
convolutions this is called cross-layer equalization, behind a normalization SmoothQuant.

What a sum reads beside products, such as a residual stream, cannot be written otherwise. It is divided in a Mul of its
own, which OpenVINO makes one step with the rounding that follows.

onnxsim's own knows neither depthwise convolutions nor inputs of three axes, and NNCF's leaves more Mul nodes in graphs.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.data.feeds import Feeds
from enginewright.graph.shapes import as_ir
from enginewright.quantization.additions import Additions
from enginewright.quantization.placement import setting
from enginewright.quantization.rescue.seams import Seam, array_of, find_seams, takes_scales
from enginewright.quantization.rescue.tensors import tensors_of
from enginewright.quantization.write_int8 import LARGEST, LEVELS, TINY, Range, dtype_of

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SMALLEST = 0.01  # of the largest channel: one that was hardly seen may be larger on other samples

Floats = NDArray[np.float64]


class Factors(NamedTuple):
    """What a Mul of our own multiplies, and by what."""

    value: ir.Value
    by: ir.Value
    node: ir.Node


class Channels(NamedTuple):
    """The largest magnitude of each channel of a tensor, the lowest number or 0, and the mean square."""

    largest: Floats
    lowest: Floats
    power: Floats


class Equalized(NamedTuple):
    model: onnx.ModelProto
    ranges: dict[str, Range]  # of the tensors whose channels are scaled


def equalize(
    model: onnx.ModelProto, kept: Collection[str], batches: Iterable[Feeds], ranges: Mapping[str, Range]
) -> Equalized | None:
    """Return the graph with scaled channels, or None where that is not possible or promises nothing. No Mul is added
    for the nodes of the names in `kept`, which stay in floating point. What has no range is not scaled."""
    changed = as_ir(model)
    added = _add_factors(changed, kept)
    copied = {each.node.outputs[0].name or "": each.value.name or "" for each in added}
    ranges = {**ranges, **{name: ranges[source] for name, source in copied.items() if source in ranges}}
    seams = [seam for seam in find_seams(changed) if ranges.keys() >= {reader.tensor for reader in seam.readers}]
    if not seams:
        return None
    channels = _channels(ir.to_proto(changed), seams, batches, ranges)
    scaled = dict[str, Range]()
    for seam in seams:
        scale = _best_scale(seam, [channels[reader.tensor] for reader in seam.readers])
        if np.ptp(scale) > 0:
            scaled |= {name: _scaled(ranges[name], channels[name], scale) for name in seam.axes if name in channels}
            for constant in seam.written:
                _multiply(constant.value, _along(1 / scale, constant.axis, constant.value))
            for reader in seam.readers:
                weights = reader.node.inputs[1]
                assert weights is not None
                _multiply(weights, _of_inputs(reader.node, scale))
    for each in added:
        if np.all(array_of(each.by) == 1):
            ir.convenience.replace_all_uses_with(each.node.outputs[0], each.value)
            changed.graph.remove(each.node, safe=True)
            changed.graph.initializers.pop(each.by.name or "")
    return Equalized(ir.to_proto(changed), scaled) if scaled else None


def _add_factors(model: ir.Model, kept: Collection[str]) -> list[Factors]:
    """Multiply by ones, which may become scales, what products of matrices read beside others that can take none."""
    reached = {reader.node for seam in find_seams(model) for reader in seam.readers}
    add, added = Additions(model), list[Factors]()
    for value in [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]:
        last, uses = len(value.shape or ()) - 1, value.uses()
        products = [(node, index) for node, index in uses if node.op_type != "Conv" and node.name not in kept]
        readers = [node for node, index in products if takes_scales(node, index, last, value)]
        size = value.shape[last] if readers and value.shape else None
        if not isinstance(size, int) or len(readers) == len(uses) or reached.intersection(readers):
            continue
        ones = add.constant(f"{value.name}.factors", np.ones(size, dtype_of(value)))
        factors = add.node("Mul", [value, ones], f"{value.name}.divided")
        factors.outputs[0].shape, factors.outputs[0].type = value.shape, value.type
        for node in readers:
            node.replace_input_with(0, factors.outputs[0])
        if maker := value.producer():
            maker.append([factors])
        else:
            model.graph[0].prepend([factors])
        added.append(Factors(value, ones, factors))
    return added


def _channels(
    model: onnx.ModelProto, seams: list[Seam], batches: Iterable[Feeds], ranges: Mapping[str, Range]
) -> dict[str, Channels]:
    """Measure the channels of the tensors of seams that have ranges, as far as they lie within these."""
    axes = {name: axis for seam in seams for name, axis in seam.axes.items() if name in ranges}
    found: dict[str, list[Channels]] = {name: [] for name in axes}
    for arrays in tensors_of(model, list(axes), batches):
        for name, array in arrays.items():
            rows = np.moveaxis(array, axes[name], 0).reshape(array.shape[axes[name]], -1)
            amax, lowest = ranges[name].amax, np.minimum(rows.min(axis=1), 0.0)
            largest = np.minimum(np.maximum(rows.max(axis=1).astype(np.float64), -lowest), amax)
            power = np.square(rows, dtype=np.float64).mean(axis=1)
            found[name].append(Channels(largest, np.maximum(lowest, -amax), power))
    return {name: _joined(parts) for name, parts in found.items()}


def _joined(parts: list[Channels]) -> Channels:
    largest, lowest, power = zip(*parts, strict=True)
    return Channels(np.max(largest, axis=0), np.min(lowest, axis=0), np.mean(power, axis=0))


def _scaled(known: Range, channels: Channels, scale: Floats) -> Range:
    """Return the range once channels are divided. The known one is of all samples, and the channels are of some: so it
    is multiplied, not replaced."""

    def growth(side: Floats) -> float:
        before = float(np.abs(side).max())
        return float(np.abs(side / scale).max()) / before if before else 1.0

    of_each = None if known.channels is None else known.channels / scale
    return Range(known.lowest * growth(channels.lowest), known.amax * growth(channels.largest), of_each)


def _best_scale(seam: Seam, channels: list[Channels]) -> Floats:
    """Return the scales by which rounding costs the readers least, of some strengths on both sides: the squared error
    of a product is the step of its input by its weights, and the steps of its weights by its input."""
    largest = np.maximum.reduce([each.largest for each in channels])
    power = np.maximum.reduce([each.power for each in channels])
    if largest.max() < TINY:
        return np.ones_like(largest)
    largest = np.maximum(largest, SMALLEST * largest.max())
    weights = [_by_channel(reader.node) for reader in seam.readers]
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


def _by_channel(node: ir.Node) -> Floats:
    """Return weights by group, output, input, and place in the kernel."""
    array = array_of(node.inputs[1]).astype(np.float64)
    if node.op_type == "Conv":
        groups = setting(node, "group", 1)
        return np.asarray(array.reshape(groups, array.shape[0] // groups, array.shape[1], -1))
    rows = array if node.op_type == "Gemm" and setting(node, "transB") else array.T
    return np.asarray(rows[None, :, :, None])


def _of_inputs(node: ir.Node, scale: Floats) -> Floats:
    """Return the scales in the form of the weights of a product that reads the channels."""
    if node.op_type == "Conv":
        shape, groups = array_of(node.inputs[1]).shape, setting(node, "group", 1)
        rows = np.repeat(scale.reshape(groups, -1), shape[0] // groups, axis=0)
        return rows.reshape(*rows.shape, *[1] * (len(shape) - 2))
    return scale if node.op_type == "Gemm" and setting(node, "transB") else scale[:, None]


def _along(scale: Floats, axis: int, value: ir.Value) -> Floats:
    shape = [1] * max(1, array_of(value).ndim)  # a scalar becomes a number for each channel
    shape[axis] = -1
    return scale.reshape(shape)


def _multiply(value: ir.Value, factors: Floats) -> None:
    array = array_of(value)
    scaled = (array * factors).astype(array.dtype)
    value.const_value = ir.tensor(scaled, name=value.name)
    value.shape = ir.Shape(scaled.shape)  # of a scalar, which becomes a number for each channel, another one

"""Round weights to what the outputs need: an error that one weight makes is made good by those not yet rounded.

This is GPTQ, which needs one pass over some samples and no learning: the products of a layer's inputs with each other
say how much each weight can make good. onnxsim's GPTQ and AdaRound round products of matrices to four bits alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from enginewright.core.cores import in_parallel
from enginewright.data.feeds import Feeds
from enginewright.graph.shapes import as_ir
from enginewright.precision.equalize import tensors_of, weights_as_given, weights_by_output
from enginewright.precision.placement import Placement, array_of
from enginewright.precision.write_int8 import Rounded, output_channels, weight_scales

ROWS = 4096  # of a layer's inputs that are looked at, as far as the samples have them
MOST_INPUTS = 2304  # of a sum: time grows by the cube, and twice as many brought next to nothing
DAMPING = 0.01  # of the mean square of an input, since few samples do not say all
MOST_BYTES = 2**28  # of sums that are held at once, beside some copies of one layer's: more layers take turns
BLOCK = 64  # weights after which the error reaches those far away, which is a product of matrices

Floats = NDArray[np.float64]


class RoundedLayer(NamedTuple):
    node: ir.Node
    weights: ir.Value
    tensor: str  # what it reads

    @property
    def array(self) -> NDArray[np.float32]:
        return array_of(self.weights)

    @property
    def sum_bytes(self) -> int:
        """Return what the products of its inputs with each other take."""
        groups, _, size = self.by_sum(self.array).shape
        return int(groups * size**2 * np.dtype(np.float64).itemsize)

    def by_sum(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return weights by group, output, and place in the sum."""
        by_output = weights_by_output(self.node, array)
        return by_output.reshape(*by_output.shape[:2], -1)

    def rows(self, given: NDArray[np.float32], most: int) -> NDArray[np.float32]:
        """Return what is multiplied with weights, by group and in the order of the sum: some rows of all."""
        if self.node.op_type != "Conv":
            rows = given.reshape(-1, given.shape[-1])
            return rows[:: max(1, len(rows) // most)][None]
        kernel = self.array.shape[2:]
        rank = len(kernel)
        settings = self.node.attributes
        strides, dilations = (settings.get_ints(name, [1] * rank) for name in ("strides", "dilations"))
        pads = settings.get_ints("pads", [0] * 2 * rank)
        padded = np.pad(given, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
        spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(padded, spans, tuple(range(2, 2 + rank)))
        steps = [slice(None, None, step) for step in (*strides, *dilations)]
        windows = np.moveaxis(windows[(slice(None), slice(None), *steps)], 1, 1 + rank)  # channels behind pixels
        count = int(np.prod(windows.shape[: 1 + rank]))
        chosen = np.unravel_index(np.arange(0, count, max(1, count // most)), windows.shape[: 1 + rank])
        return np.moveaxis(windows[chosen].reshape(len(chosen[0]), settings.get_int("group", 1), -1), 1, 0)


def round_weights(model: onnx.ModelProto, kept: Collection[str], batches: Sequence[Feeds], largest: int) -> Rounded:
    """Return the bytes of the weights that are in int8 if the nodes of the names in `kept` are not."""
    rounded: dict[str, NDArray[np.int8]] = {}
    # Several threads of one product add in another order than one does. So layers take the cores, one thread each, and
    # the bytes do not depend on how many there are.
    with threadpool_limits(1, "blas"):
        for portion in portions(find_layers(as_ir(model), kept)):
            work = zip(portion, _sums_of(portion, model, batches), strict=True)
            names = [layer.weights.name or "" for layer in portion]
            rounded |= zip(names, in_parallel(lambda pair: _round(*pair, largest), work), strict=True)
    return rounded


def _round(layer: RoundedLayer, sums: Floats, largest: int) -> NDArray[np.int8]:
    steps = weight_scales(layer.array, output_channels(layer.node, layer.array.ndim), largest)
    units = np.asarray(layer.by_sum(layer.array / steps), np.float64)
    return weights_as_given(layer.node, round_by_sum(units, sums, largest)[..., None], layer.array.shape)


def portions(layers: Iterable[RoundedLayer]) -> Iterator[list[RoundedLayer]]:
    """Yield layers whose sums fit into memory together. Those of one alone may be larger."""
    portion: list[RoundedLayer] = []
    for layer in layers:
        if portion and sum(each.sum_bytes for each in [*portion, layer]) > MOST_BYTES:
            yield portion
            portion = []
        portion.append(layer)
    if portion:
        yield portion


def _sums_of(layers: Sequence[RoundedLayer], model: onnx.ModelProto, batches: Sequence[Feeds]) -> Iterable[Floats]:
    """Return the products of the inputs of each layer with each other: means over rows."""

    def products(layer: RoundedLayer, arrays: Mapping[str, NDArray[Any]]) -> Floats:
        rows = layer.rows(arrays[layer.tensor].astype(np.float32), ROWS // len(batches))
        return np.asarray((np.swapaxes(rows, 1, 2) @ rows).astype(np.float64) / rows.shape[1])

    sums: Iterable[Floats] = [np.zeros(())] * len(layers)
    for arrays in tensors_of(model, list(dict.fromkeys(layer.tensor for layer in layers)), batches):
        found = in_parallel(partial(products, arrays=arrays), layers)
        sums = [before + each for before, each in zip(sums, found, strict=True)]
    return sums


def find_layers(model: ir.Model, kept: Collection[str]) -> list[RoundedLayer]:
    """Return the products whose weights nothing else reads, and whose sums are not too long."""
    found = []
    for node in Placement(model, kept).products:
        given, weights = node.inputs[:2]
        if given is None or weights is None or weights.const_value is None or len(weights.uses()) > 1:
            continue
        layer, rank = RoundedLayer(node, weights, given.name or ""), len(weights.const_value.shape)
        attributes = {name: each.value for name, each in node.attributes.items()}
        is_plain = node.op_type == "Conv" and attributes.get("auto_pad", "NOTSET") == "NOTSET"
        is_plain |= node.op_type in ("Gemm", "MatMul") and rank == 2 and not attributes.get("transA")
        if is_plain and layer.by_sum(layer.array).shape[2] <= MOST_INPUTS:
            found.append(layer)
    return found


def round_by_sum(units: Floats, products: Floats, largest: int) -> NDArray[np.int8]:
    """Round weights in units of their steps, by group, output and place, those first whose input is largest.

    The largest weight of each output keeps the largest number, since its step is derived from that.
    """
    size = units.shape[2]
    power = np.einsum("gii->gi", products)
    order = np.argsort(-power.mean(axis=0), kind="stable")
    damped = products + (DAMPING * power.mean(axis=1) + np.finfo(np.float32).tiny)[:, None, None] * np.eye(size)
    damped = damped[:, order][:, :, order]
    # Rounding costs the outputs least if each weight is rounded from what it is plus U's part of all errors before it,
    # where damped = U @ D @ U.T, and U is the upper factor whose diagonal is 1.
    upper = np.linalg.cholesky(damped[:, ::-1, ::-1])[:, ::-1, ::-1]
    upper = upper / np.einsum("gii->gi", upper)[:, None]
    exact = np.ascontiguousarray(np.swapaxes(units[:, :, order], 1, 2))  # by place, so that a step reads one row
    found = np.stack([_round_in_turn(*each, largest) for each in zip(exact, upper, strict=True)])
    return np.ascontiguousarray(np.swapaxes(found, 1, 2)[:, :, np.argsort(order)])


def _round_in_turn(exact: Floats, upper: Floats, largest: int) -> NDArray[np.int8]:
    """Round one group's weights, by place and output: those of a place together, and later places with its errors."""
    peaks = np.abs(exact) >= np.abs(exact).max(axis=0) * (1 - 1e-6)
    found, wrong = np.zeros(exact.shape, np.int8), np.zeros_like(exact)
    for start in range(0, len(exact), BLOCK):
        block = slice(start, min(start + BLOCK, len(exact)))
        due = exact[block] + upper[:start, block].T @ wrong[:start]
        within = upper[block, block]
        for number, place in enumerate(range(block.start, block.stop)):
            nearest = np.clip(np.rint(due[number]), -largest, largest)
            found[place] = np.where(peaks[place], np.sign(exact[place]) * largest, nearest)
            wrong[place] = exact[place] - found[place]
            due[number + 1 :] += within[number, number + 1 :, None] * wrong[place]
    return found

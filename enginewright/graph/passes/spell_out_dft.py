from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray

from enginewright.graph.passes.constants import add_constant
from enginewright.graph.passes.find import find_nodes, names_in_use, unused_name

LONGEST = 2048  # numbers of a transform: its matrix grows by the square
REAL, COMPLEX = 1, 2  # the sizes of the last axis
AXIS_IS_AN_INPUT = 20  # from this opset on


class SpellOutDft(ir.passes.InPlacePass):
    """Turn each Fourier transform of a known length into a product with its matrix.

    OpenVINO reads the axis of a DFT of opset 20 as the first after the batch, whatever it is, and gives one that is
    one-sided an axis more.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        is_known = model.opset_imports.get("", 1) >= AXIS_IS_AN_INPUT
        found = [(node, sizes) for node in find_nodes(model, "DFT") if is_known and (sizes := _sizes(node))]
        taken = names_in_use(model) if found else set()
        for node, sizes in found:
            _spell_out(model, node, sizes, taken)
        return ir.passes.PassResult(model, modified=bool(found))


def _sizes(node: ir.Node) -> tuple[int, int, int, int, int] | None:
    """Return rank, axis, numbers that are read, length of the transform, and whether they are real or complex."""
    given, length, axis = (*node.inputs, None, None)[:3]
    is_known = all(each is None or each.const_value is not None for each in (length, axis))
    if given is None or given.shape is None or given.dtype is None or not is_known:
        return None
    rank = len(given.shape)
    where = -2 if axis is None else _integer(axis)
    where %= rank
    read, kind = given.shape[where], given.shape[-1]
    if not isinstance(read, int) or not isinstance(kind, int):
        return None
    whole = read if length is None else _integer(length)
    return (rank, where, read, whole, kind) if max(read, whole) <= LONGEST else None


def _integer(value: ir.Value) -> int:
    assert value.const_value is not None
    return int(value.const_value.numpy().reshape(-1)[0])


def _spell_out(model: ir.Model, node: ir.Node, sizes: tuple[int, int, int, int, int], taken: set[str]) -> None:
    rank, axis, read, whole, kind = sizes
    flags = [name in node.attributes and bool(node.attributes[name].as_int()) for name in ("inverse", "onesided")]
    matrix = _matrix(read, whole, kind, *flags)
    order = [*(each for each in range(rank - 1) if each != axis), axis, rank - 1]
    value = node.inputs[0]
    assert value is not None
    assert value.dtype is not None
    matrix = matrix.astype(value.dtype.numpy())
    steps: list[tuple[str, ArrayLike | None, dict[str, list[int]]]] = [
        ("Transpose", None, {"perm": order}),
        ("Reshape", [0] * (rank - 2) + [read * kind], {}),
        ("MatMul", matrix.reshape(read * kind, -1), {}),
        ("Reshape", [0] * (rank - 2) + list(matrix.shape[2:]), {}),
    ]
    name = node.outputs[0].name
    for number, (operator, constant, attributes) in enumerate(steps):
        made = ir.val(unused_name(f"{name}.{number}", taken))
        label = unused_name(f"{name}.constant{number}", taken)
        given = [value] if constant is None else [value, add_constant(model, node, label, constant)]
        node.prepend(ir.node(operator, given, attributes, outputs=[made], name=made.name))
        value = made
    node.op_type = "Transpose"
    node.attributes.clear()
    node.attributes["perm"] = ir.AttrInt64s("perm", np.argsort(order).tolist())
    node.resize_inputs(1)
    node.replace_input_with(0, value)


def _matrix(read: int, whole: int, kind: int, inverse: bool, onesided: bool) -> NDArray[Any]:
    """Return what the transform makes of each number alone, by the number, its parts, the result, and its parts."""
    numbers = np.eye(read)[:, None] * np.array([1, 1j][:kind]).reshape(1, kind, 1)
    match inverse, onesided:
        case True, True:
            return np.asarray(np.fft.irfft(numbers, whole)[..., None])
        case True, False:
            found = np.fft.ifft(numbers, whole)
        case False, True:
            found = np.fft.fft(numbers, whole)[..., : whole // 2 + 1]
        case _:
            found = np.fft.fft(numbers, whole)
    return np.stack([found.real, found.imag], -1)

"""Lay tokens that stand in rows and columns in a single row, so that OpenVINO fuses what follows an int8 product.

OpenVINO fuses a bias, an activation and a rounding into a product of matrices where the channels are the third of three
axes. The tokens of a Swin or a ConvNeXt have four axes. In a single row they give the same numbers.
"""

from typing import Any

import numpy as np

from enginewright.engine.runtimes.openvino_cures import is_rounded, openvino

ROW_OF_TOKENS, MATRIX = 3, 2  # axes: the batch, the tokens and their channels; what is read and what is returned
ALONE = {"Abs", "Clamp", "Elu", "Exp", "Gelu", "HSigmoid", "HSwish", "Mish", "Negative", "Relu", "Sigmoid", "Sqrt"}
ALONE |= {"Swish", "Tanh"}  # operators on each number by itself
WITH_CONSTANTS = {"Add", "Divide", "FakeQuantize", "Maximum", "Minimum", "Multiply", "Subtract"}


def lay_tokens_in_a_row(model: Any) -> None:
    done: set[str] = set()
    for node in model.get_ordered_ops():
        if node.get_name() not in done and _multiplies_tokens(node) and is_rounded(node):
            chain = _chain(node)
            done.update(each.get_name() for each in chain)
            _lay_in_a_row(chain)
    if done:
        model.validate_nodes_and_infer_types()


def _chain(product: Any) -> list[Any]:
    """Return the product and the operators behind it that treat every token alike, while nothing else reads them."""
    chain = [product]
    while len(readers := chain[-1].output(0).get_target_inputs()) == 1:
        (port,) = readers
        if not _treats_tokens_alike(port.get_node(), port.get_index()):
            break
        chain.append(port.get_node())
    return chain


def _treats_tokens_alike(node: Any, index: int) -> bool:
    if node.get_type_name() in ALONE:
        return True
    if node.get_type_name() in WITH_CONSTANTS:
        others = [node.input_value(number) for number in range(node.get_input_size()) if number != index]
        return all(_is_for_channels(other, len(node.input_value(index).get_partial_shape())) for other in others)
    return index == 0 and _multiplies_tokens(node)


def _is_for_channels(constant: Any, axes: int) -> bool:
    """Tell whether it is a constant, the same for each token, that adds none to the tokens' axes."""
    if constant.get_node().get_type_name() != "Constant":
        return False
    shape = list(constant.get_shape())
    return len(shape) <= axes and all(size == 1 for size in shape[:-1])


def _multiplies_tokens(node: Any) -> bool:
    """Tell whether it is a product of weights and tokens in rows and columns, of which only the batch size varies."""
    if node.get_type_name() != "MatMul" or node.get_attributes()["transpose_a"]:
        return False
    tokens, weights = (node.input_value(number).get_partial_shape() for number in (0, 1))
    if tokens.rank.is_dynamic or weights.is_dynamic or len(weights) != MATRIX:
        return False
    return len(tokens) > ROW_OF_TOKENS and all(size.is_static for size in list(tokens)[1:])


def _lay_in_a_row(chain: list[Any]) -> None:
    first, last = chain[0].input(0), chain[-1].output(0)
    readers, sizes = last.get_target_inputs(), _sizes_of_a_sample(last)
    channels = _sizes_of_a_sample(first.get_source_output())[-1]
    first.replace_source_output(_reshaped(first.get_source_output(), [-1, channels]))
    for port in (port for node in chain for port in node.inputs()):
        _drop_axes(port)
    back = _reshaped(last, sizes)
    for port in readers:
        port.replace_source_output(back)


def _sizes_of_a_sample(output: Any) -> list[int]:
    return [size.get_length() for size in list(output.get_partial_shape())[1:]]


def _reshaped(output: Any, sizes: list[int]) -> Any:
    return openvino().opset13.reshape(output, np.array([0, *sizes]), special_zero=True).output(0)


def _drop_axes(port: Any) -> None:
    """Give a constant as many axes as the tokens have now, or its own would be added to theirs."""
    constant = port.get_source_output().get_node()
    if constant.get_type_name() == "Constant" and len(constant.get_output_shape(0)) > ROW_OF_TOKENS:
        array = constant.data.reshape(constant.data.shape[-ROW_OF_TOKENS:])
        port.replace_source_output(openvino().opset13.constant(array).output(0))

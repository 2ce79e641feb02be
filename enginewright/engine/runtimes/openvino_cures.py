"""Work around bugs of OpenVINO, and of oneDNN, whose kernels it runs, by changes that compute the same."""

from typing import Any

import numpy as np

PRODUCTS = {"Convolution", "GroupConvolution", "MatMul"}
MOVES = {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}
EXTREMES = {"ReduceMax", "ReduceMin"}
REDUCTIONS = EXTREMES | {"ReduceMean", "ReduceSum"}
ROW, FLOAT = 64, 4  # bytes of a row of AMX's tiles, and of a float
BYTE = 8  # bits


def openvino() -> Any:
    import openvino  # here, since it may be missing

    return openvino


def cure(model: Any) -> None:
    _keep_factors_out_of_quantization(model)
    _keep_extremes_out_of_quantization(model)
    _keep_quantized_pixels_out_of_sums(model)
    _give_products_one_reader(model)
    _keep_products_out_of_appended_axes(model)
    _select_by_lists(model)
    _widen_kernels(model)


def _keep_factors_out_of_quantization(model: Any) -> None:
    """Put an operator between factors per channel and a quantization, where some factors are negative, or where axes
    are moved or reduced between the two, as by a mean over tokens. OpenVINO fuses the two, and applies the first
    channel's factor to all channels, negative ones if the batch size varies, as in ConvNeXt's layer scale. A maximum
    with the quantization's own lower bound keeps them apart and changes no value."""
    for quantization in model.get_ops():
        if quantization.get_type_name() == "FakeQuantize" and _has_misplaced_factors(quantization.input_value(0)):
            _bound(quantization)


def _keep_extremes_out_of_quantization(model: Any) -> None:
    """Put the same operator before a quantization of a maximum or minimum over axes, whatever else lies between.
    OpenVINO makes them one step, which compares the values as bytes, without their fractions: seen in VOLO's head."""
    for quantization in model.get_ops():
        if quantization.get_type_name() == "FakeQuantize" and _is_of_extremes(quantization.input_value(0)):
            _bound(quantization)


def _keep_quantized_pixels_out_of_sums(model: Any) -> None:
    """Put the same operator between a quantization and an addition, where each channel has a single pixel. If an int8
    convolution without a bias is added there, and the batch size varies, OpenVINO reads bytes as floats at batch 1:
    seen in the last block of an untrained ResNet on images of 32 pixels, with AVX-512 and without AMX."""
    for addition in model.get_ops():
        shape = addition.output(0).get_partial_shape() if addition.get_type_name() == "Add" else None
        if shape is None or shape.rank.is_dynamic or len(shape) < 3 or not all(size == 1 for size in list(shape)[2:]):
            continue
        for port in addition.inputs():
            quantization = port.get_source_output().get_node()
            if quantization.get_type_name() == "FakeQuantize":
                lowest = quantization.input_value(3)
                port.replace_source_output(openvino().opset13.maximum(port.get_source_output(), lowest).output(0))


def _give_products_one_reader(model: Any) -> None:
    """Put an operator behind a product whose result is quantized for some readers and exact for others, as between the
    stages of ConvNeXt. OpenVINO otherwise applies the scales of the weights twice before the quantization, which then
    returns zeros."""
    lowest = np.finfo(np.float32).min
    for product in model.get_ops():
        readers = product.output(0).get_target_inputs() if product.get_type_name() in PRODUCTS else ()
        if len(readers) > 1 and any(port.get_node().get_type_name() == "FakeQuantize" for port in readers):
            same = openvino().opset13.maximum(product.output(0), lowest)
            for port in readers:
                port.replace_source_output(same.output(0))


def _keep_products_out_of_appended_axes(model: Any) -> None:
    """Put an operator behind an int8 product of matrices that moves on with axes of size one behind its own, as keys of
    an attention do where there is one for each image. OpenVINO otherwise takes the second axis for that of the scales
    of the weights, and refuses to compile."""
    for moved in model.get_ops():
        port = _beginning(moved)
        product = port.get_source_output().get_node() if port else moved
        if port and product.get_type_name() == "MatMul" and is_rounded(product) and _appends_axes(product, moved):
            same = openvino().opset13.maximum(product.output(0), np.finfo(np.float32).min)
            port.replace_source_output(same.output(0))


def _select_by_lists(model: Any) -> None:
    """Let a Gather of one place, such as that of the last token, take a list of it, and remove the axis afterwards.
    OpenVINO moves the scales of an int8 product's weights behind the Gather, with the axis that it removes if the place
    is a scalar, so that the result has an axis more."""
    for gather in model.get_ops():
        if gather.get_type_name() == "Gather" and _selects_one_of_floats(gather):
            place, axis = (gather.input_value(number).get_node().data.reshape(1) for number in (1, 2))
            name = gather.get_friendly_name()
            selected = openvino().opset13.gather(gather.input_value(0), place, axis[0], name=name)
            squeezed = openvino().opset13.squeeze(selected, axis).output(0)
            squeezed.set_names(gather.output(0).get_names())
            for port in gather.output(0).get_target_inputs():
                port.replace_source_output(squeezed)


def _bound(quantization: Any) -> None:
    bounded = openvino().opset13.maximum(quantization.input_value(0), quantization.input_value(1))
    quantization.input(0).replace_source_output(bounded.output(0))


def _is_of_extremes(output: Any) -> bool:
    """Tell whether a maximum or minimum becomes this in steps of a single computed input each, or joined with others,
    as OpenVINO moves a rounding to what is joined."""
    node = output.get_node()
    if node.get_type_name() in EXTREMES:
        return True
    sources = (port.get_source_output() for port in node.inputs())
    computed = [source for source in sources if source.get_node().get_type_name() != "Constant"]
    leads_on = len(computed) == 1 or node.get_type_name() == "Concat"
    return leads_on and node.get_type_name() not in PRODUCTS and any(map(_is_of_extremes, computed))


def _selects_one_of_floats(gather: Any) -> bool:
    known = [gather.input_value(number).get_node() for number in (1, 2)]
    is_known = all(each.get_type_name() == "Constant" for each in known)
    computed = gather.input_value(0).get_node().get_type_name() != "Constant"
    is_float = gather.output(0).get_element_type() == openvino().Type.f32
    return is_known and computed and is_float and not known[0].data.shape and not gather.get_attributes()["batch_dims"]


def _beginning(node: Any) -> Any:
    """Return the input where a chain of operators begins that only move numbers, and that ends with this node."""
    port = None
    while node.get_type_name() in MOVES:
        port = node.input(0)
        node = port.get_source_output().get_node()
    return port


def is_rounded(product: Any) -> bool:
    source = product.input_value(0).get_node()
    port = _beginning(source)
    kind: str = (port.get_source_output().get_node() if port else source).get_type_name()
    return kind == "FakeQuantize"


def _appends_axes(before: Any, after: Any) -> bool:
    """Tell whether there are more than two axes before, and the same afterwards with some of size one behind them."""
    old, new = (node.output(0).get_partial_shape() for node in (before, after))
    if old.rank.is_dynamic or new.rank.is_dynamic or not 2 < len(old) < len(new):
        return False
    sizes = list(old)[1:] + [1] * (len(new) - len(old))  # those of one sample
    return all(size == wanted for size, wanted in zip(list(new)[1:], sizes, strict=True))


def _has_misplaced_factors(output: Any) -> bool:
    node, is_moved = output.get_node(), False
    while node.get_type_name() in MOVES | REDUCTIONS:
        node, is_moved = node.input_value(0).get_node(), True
    if node.get_type_name() not in ("Multiply", "Divide"):
        return False
    factors = [port.get_source_output().get_node() for port in node.inputs()]
    constants = [factor.data for factor in factors if factor.get_type_name() == "Constant"]
    return any((array < 0).any() or (is_moved and array.size > 1) for array in constants)


def _widen_kernels(model: Any) -> None:
    """Append a column of zeros to kernels whose columns fill rows of AMX's tiles where single pixels do not. oneDNN
    otherwise computes many such convolutions wrongly in int8 and bf16: 8x8 patches of 32 channels, as in a PVT."""
    convolutions = [node for node in model.get_ops() if node.get_type_name() == "Convolution"]
    found = [(convolution, weights) for convolution in convolutions if (weights := _narrow_weights(convolution))]
    for convolution, weights in found:
        _append_column(weights)
        *others, last = convolution.get_attributes()["pads_end"]
        convolution.set_attribute("pads_end", [*others, last + 1])
    if found:
        model.validate_nodes_and_infer_types()


def _narrow_weights(convolution: Any) -> Any:
    """Return the constant that the weights are made of, if oneDNN needs a wider kernel, and if nothing else reads it
    and no scale is a column's own."""
    node, is_rounded, settings = convolution.input_value(1).get_node(), False, convolution.get_attributes()
    if settings["auto_pad"] != "explicit" or set(settings["dilations"]) != {1}:
        return None
    while node.get_type_name() in ("Convert", "Multiply", "FakeQuantize"):
        is_rounded |= node.get_type_name() == "FakeQuantize"
        scales = [node.input_value(number).get_partial_shape() for number in range(1, node.get_input_size())]
        if len(node.output(0).get_target_inputs()) > 1 or any(len(each) and each[-1] != 1 for each in scales):
            return None
        node = node.input_value(0).get_node()
    kind = node.output(0).get_element_type()
    if node.get_type_name() != "Constant" or len(node.output(0).get_target_inputs()) > 1 or kind.bitwidth < BYTE:
        return None
    size = 1 if is_rounded else kind.size
    _, channels, *_, columns = node.get_output_shape(0)
    row = columns * channels * size
    needs_one = size < FLOAT and channels * size < ROW < row and row % ROW == 0
    return node if needs_one else None


def _append_column(weights: Any) -> None:
    *others, columns = weights.get_output_shape(0)
    wide = openvino().Tensor(weights.get_element_type(), openvino().Shape([*others, columns + 1]))
    wide.data[..., :columns], wide.data[..., columns] = weights.data, 0  # of bf16 they are the bits, as float16
    (port,) = weights.output(0).get_target_inputs()
    port.replace_source_output(openvino().opset13.constant(wide).output(0))

"""Read an ONNX graph as OpenVINO's own model, in a form that it computes rightly and fast."""

from pathlib import Path
from typing import Any

import numpy as np

from enginewright.core.files import scratch_folder

# Work around bugs of OpenVINO, and of oneDNN, whose kernels it runs, by changes that compute the same.

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


# Lay tokens that stand in rows and columns in a single row, so that OpenVINO fuses what follows an int8 product.
# OpenVINO fuses a bias, an activation and a rounding into a product of matrices where the channels are the third of
# three axes. The tokens of a Swin or a ConvNeXt have four axes. In a single row they give the same numbers.

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


TRANSFORMS = {"DFT", "IDFT", "IRDFT", "RDFT"}
ATTENTION_INPUTS = 5  # queries, keys, values, a mask and a factor


def write_ir(onnx: Path, folder: Path) -> None:
    """Write the graph that `compile` compiles as OpenVINO's own model.xml and model.bin."""
    openvino().save_model(read_graph(onnx), folder / "model.xml", compress_to_fp16=False)


def read_graph(onnx: Path) -> Any:
    """Read a graph through convert_model. Compiled straight from the path, some int8 graphs (Concat before Q/DQ and
    Conv) silently give wrong results."""
    model = _converted(onnx)
    lay_tokens_in_a_row(model)
    _normalize_in_bf16(model)
    _spell_out_attention(model)
    cure(model)
    return model


def _converted(onnx: Path) -> Any:
    """Convert a graph, or one that computes the same, where OpenVINO lacks the operators that round in blocks, or gets
    Fourier transforms wrong."""
    try:
        model = openvino().convert_model(onnx)
        if TRANSFORMS.isdisjoint(operation.get_type_name() for operation in model.get_ops()):
            return model
        twin = _twin_of(onnx)
    except Exception:  # OpenVINO's own exceptions share no base class
        if (twin := _twin_of(onnx)) is None:
            raise
    from enginewright.graph.onnx_file import save_graph  # here: engines are opened without onnx

    with scratch_folder() as scratch:
        save_graph(twin, scratch / "twin.onnx")
        return openvino().convert_model(scratch / "twin.onnx")


def _twin_of(onnx: Path) -> Any:
    from enginewright.graph.as_written import has_blocks, spelled_out  # here, as above
    from enginewright.graph.onnx_file import load_graph
    from enginewright.graph.passes import apply_passes
    from enginewright.graph.passes.spell_out import spell_out_dft

    graph = load_graph(onnx)
    if has_blocks(graph):
        return spelled_out(graph)
    has_transforms = any(node.op_type == "DFT" for node in graph.graph.node)
    return apply_passes(graph, spell_out_dft) if has_transforms else None


def _normalize_in_bf16(model: Any) -> None:
    """Let a normalization read and write bf16 where OpenVINO converts to float32 before it and back behind it, as
    ONNX's LayerNormalization asks for. Its kernel sums in float32 all the same, and the two conversions take longer
    than it does."""
    norms = [node for node in model.get_ops() if node.get_type_name() == "MVN" and _is_between_bf16(node)]
    for norm in norms:
        norm.input(0).replace_source_output(norm.input_value(0).get_node().input_value(0))
    if norms:
        model.validate_nodes_and_infer_types()


def _is_between_bf16(norm: Any) -> bool:
    bf16, given = openvino().Type.bf16, norm.input_value(0).get_node()
    was_bf16 = given.get_type_name() == "Convert" and given.input_value(0).get_element_type() == bf16
    return was_bf16 and {port.get_node().get_element_type() for port in norm.output(0).get_target_inputs()} == {bf16}


def _spell_out_attention(model: Any) -> None:
    """Write an attention in bf16 without a factor as the products and the Softmax that it is. OpenVINO does the same
    later, but with a factor of one, for whose sake it transposes all keys: Swin-T then takes 1.06 times as long."""
    for attention in model.get_ops():
        if attention.get_type_name() == "ScaledDotProductAttention" and _lacks_a_factor(attention):
            queries, keys, values, mask, _ = (port.get_source_output() for port in attention.inputs())
            operators = openvino().opset13
            scores = operators.add(operators.matmul(queries, keys, False, True), mask)
            result = operators.matmul(operators.softmax(scores, -1), values, False, False)
            result.set_friendly_name(attention.get_friendly_name())
            result.output(0).set_names(attention.output(0).get_names())
            for port in attention.output(0).get_target_inputs():
                port.replace_source_output(result.output(0))


def _lacks_a_factor(attention: Any) -> bool:
    """Tell whether it is in bf16, with a mask that is added and a factor of one."""
    *_, mask, factor = sources = [port.get_source_output() for port in attention.inputs()]
    if len(sources) < ATTENTION_INPUTS:
        return False
    bf16, is_known = openvino().Type.bf16, factor.get_node().get_type_name() == "Constant"
    is_added = mask.get_element_type() == bf16 and not attention.get_attributes()["causal"]
    return is_added and is_known and (factor.get_node().get_data(dtype=np.float32) == 1).all()

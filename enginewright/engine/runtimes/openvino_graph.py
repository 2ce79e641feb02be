"""Read an ONNX graph as OpenVINO's own model, in a form that it computes rightly and fast. All changes work around bugs
of OpenVINO, or of oneDNN, whose kernels it runs, and compute the same."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from enginewright.core.files import scratch_folder

PRODUCTS = {"Convolution", "GroupConvolution", "MatMul"}
MOVES = {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}  # which only move numbers
EXTREMES = {"ReduceMax", "ReduceMin"}
REDUCTIONS = EXTREMES | {"ReduceMean", "ReduceSum"}
TRANSFORMS = {"DFT", "IDFT", "IRDFT", "RDFT"}
ON_EACH_NUMBER = {
    "Abs", "Clamp", "Elu", "Exp", "Gelu", "HSigmoid", "HSwish", "Mish", "Negative", "Relu", "Sigmoid", "Sqrt", "Swish",
    "Tanh",
}  # fmt: skip
WITH_CONSTANTS = {"Add", "Divide", "FakeQuantize", "Maximum", "Minimum", "Multiply", "Subtract"}
LOWEST = np.finfo(np.float32).min
TILE_ROW = 64  # bytes of a row of AMX's tiles


def openvino() -> Any:
    import openvino  # here, since it may be missing

    return openvino


def write_ir(onnx: Path, folder: Path) -> None:
    """Write the graph that `compile` compiles as OpenVINO's own model.xml and model.bin."""
    openvino().save_model(read_graph(onnx), folder / "model.xml", compress_to_fp16=False)


def read_graph(onnx: Path) -> Any:
    """Read a graph through convert_model. Compiled straight from the path, some int8 graphs (Concat before Q/DQ and
    Conv) silently give wrong results."""
    model = _converted(onnx)
    _lay_tokens_in_a_row(model)
    _normalize_in_bf16(model)
    _spell_out_attention(model)
    _keep_apart_from_quantization(model)
    _keep_quantized_pixels_out_of_sums(model)
    _give_products_one_reader(model)
    _keep_products_out_of_appended_axes(model)
    _select_by_lists(model)
    _widen_kernels(model)
    return model


def _converted(onnx: Path) -> Any:
    """Convert a graph, or one that computes the same, where OpenVINO lacks the operators that round in blocks, or gets
    Fourier transforms wrong."""
    try:
        model = openvino().convert_model(onnx)
        if not _nodes(model, TRANSFORMS):
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
    from enginewright.graph.passes.for_one_compiler import spell_out_dft

    graph = load_graph(onnx)
    if has_blocks(graph):
        return spelled_out(graph)
    has_transforms = any(node.op_type == "DFT" for node in graph.graph.node)
    return apply_passes(graph, spell_out_dft) if has_transforms else None


def _nodes(model: Any, kinds: set[str]) -> list[Any]:
    return [node for node in model.get_ops() if node.get_type_name() in kinds]


def _kind(output: Any) -> str:
    return str(output.get_node().get_type_name())


def _put_between(port: Any, lowest: Any) -> None:
    """Put a maximum with the lowest number before an input. It changes no value, and OpenVINO fuses nothing across."""
    port.replace_source_output(openvino().opset13.maximum(port.get_source_output(), lowest).output(0))


def _replace(output: Any, other: Any) -> None:
    for port in output.get_target_inputs():
        port.replace_source_output(other)


def _keep_apart_from_quantization(model: Any) -> None:
    """Keep a quantization apart from what OpenVINO makes one step with it. Of factors per channel it applies the first
    one to all channels, where some are negative and the batch size varies, as in ConvNeXt's layer scale, or where axes
    are moved or reduced between the two, as by a mean over tokens. A maximum or minimum over axes, whatever else lies
    between, it takes of bytes, without the values' fractions: seen in VOLO's head."""
    for quantization in _nodes(model, {"FakeQuantize"}):
        source = quantization.input_value(0)
        if _has_misplaced_factors(source) or _is_of_extremes(source):
            _put_between(quantization.input(0), quantization.input_value(1))


def _has_misplaced_factors(output: Any) -> bool:
    is_moved = False
    while _kind(output) in MOVES | REDUCTIONS:
        output, is_moved = output.get_node().input_value(0), True
    if _kind(output) not in ("Multiply", "Divide"):
        return False
    constants = [each.get_node().data for each in output.get_node().input_values() if _kind(each) == "Constant"]
    return any((array < 0).any() or (is_moved and array.size > 1) for array in constants)


def _is_of_extremes(output: Any) -> bool:
    """Tell whether a maximum or minimum becomes this in steps of a single computed input each, or joined with others,
    as OpenVINO moves a rounding to what is joined."""
    if _kind(output) in EXTREMES:
        return True
    computed = [each for each in output.get_node().input_values() if _kind(each) != "Constant"]
    leads_on = len(computed) == 1 or _kind(output) == "Concat"
    return leads_on and _kind(output) not in PRODUCTS and any(map(_is_of_extremes, computed))


def _keep_quantized_pixels_out_of_sums(model: Any) -> None:
    """Keep a quantization apart from an addition, where each channel has a single pixel. If an int8 convolution without
    a bias is added there, and the batch size varies, OpenVINO reads bytes as floats at batch 1: seen in the last block
    of an untrained ResNet on images of 32 pixels, with AVX-512 and without AMX."""
    for addition in _nodes(model, {"Add"}):
        shape = addition.output(0).get_partial_shape()
        if shape.rank.is_static and len(shape) > 2 and all(size == 1 for size in list(shape)[2:]):
            for port in addition.inputs():
                if _kind(port.get_source_output()) == "FakeQuantize":
                    _put_between(port, port.get_source_output().get_node().input_value(3))


def _give_products_one_reader(model: Any) -> None:
    """Put an operator behind a product whose result is quantized for some readers and exact for others, as between the
    stages of ConvNeXt. OpenVINO otherwise applies the scales of weights twice before it quantizes, and gets zeros."""
    for product in _nodes(model, PRODUCTS):
        readers = product.output(0).get_target_inputs()
        if len(readers) > 1 and any(port.get_node().get_type_name() == "FakeQuantize" for port in readers):
            same = openvino().opset13.maximum(product.output(0), LOWEST).output(0)
            for port in readers:
                port.replace_source_output(same)


def _keep_products_out_of_appended_axes(model: Any) -> None:
    """Put an operator behind an int8 product of matrices that moves on with axes of size one behind its own, as keys of
    an attention do where there is one for each image. OpenVINO otherwise takes the second axis for that of the scales
    of the weights, and refuses to compile."""
    for moved in _nodes(model, MOVES):
        port = moved.input(0)
        while _kind(port.get_source_output()) in MOVES:
            port = port.get_source_output().get_node().input(0)
        product = port.get_source_output()
        if _kind(product) == "MatMul" and _is_rounded(product.get_node()) and _appends_axes(product, moved.output(0)):
            _put_between(port, LOWEST)


def _is_rounded(product: Any) -> bool:
    source = product.input_value(0)
    while _kind(source) in MOVES:
        source = source.get_node().input_value(0)
    return _kind(source) == "FakeQuantize"


def _appends_axes(before: Any, after: Any) -> bool:
    """Tell whether there are more than two axes before, and the same afterwards with some of size one behind them."""
    old, new = before.get_partial_shape(), after.get_partial_shape()
    if old.rank.is_dynamic or new.rank.is_dynamic or not 2 < len(old) < len(new):
        return False
    return all(found == size for found, size in zip_longest(list(new)[1:], list(old)[1:], fillvalue=1))


def _select_by_lists(model: Any) -> None:
    """Let a Gather of one place, such as that of the last token, take a list of it, and remove the axis afterwards.
    OpenVINO moves the scales of an int8 product's weights behind the Gather, with the axis that it removes if the place
    is a scalar, so that the result has an axis more."""
    for gather in _nodes(model, {"Gather"}):
        values, *known = gather.input_values()
        if _kind(values) == "Constant" or any(_kind(each) != "Constant" for each in known):
            continue
        place, axis = (each.get_node().data for each in known)
        is_float = gather.output(0).get_element_type() == openvino().Type.f32
        if is_float and not place.shape and not gather.get_attributes()["batch_dims"]:
            axis, name = axis.reshape(1), gather.get_friendly_name()
            selected = openvino().opset13.gather(values, place.reshape(1), axis[0], name=name)
            squeezed = openvino().opset13.squeeze(selected, axis).output(0)
            squeezed.set_names(gather.output(0).get_names())
            _replace(gather.output(0), squeezed)


def _widen_kernels(model: Any) -> None:
    """Append a column of zeros to kernels whose columns fill rows of AMX's tiles where single pixels do not. oneDNN
    otherwise computes many such convolutions wrongly in int8 and bf16: 8x8 patches of 32 channels, as in a PVT."""
    found = [(each, weights) for each in _nodes(model, {"Convolution"}) if (weights := _narrow_weights(each))]
    for convolution, weights in found:
        *others, columns = weights.get_output_shape(0)
        wide = openvino().Tensor(weights.get_element_type(), openvino().Shape([*others, columns + 1]))
        wide.data[..., :columns], wide.data[..., columns] = weights.data, 0  # of bf16 they are the bits, as float16
        _replace(weights.output(0), openvino().opset13.constant(wide).output(0))
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
        scales = [each.get_partial_shape() for each in node.input_values()[1:]]
        if len(node.output(0).get_target_inputs()) > 1 or any(len(each) and each[-1] != 1 for each in scales):
            return None
        node = node.input_value(0).get_node()
    kind = node.output(0).get_element_type()
    if node.get_type_name() != "Constant" or len(node.output(0).get_target_inputs()) > 1 or kind.bitwidth < 8:
        return None
    size = 1 if is_rounded else kind.size
    _, channels, *_, columns = node.get_output_shape(0)
    row = columns * channels * size
    is_narrow = size < 4 and channels * size < TILE_ROW < row and row % TILE_ROW == 0  # 4 bytes are a float
    return node if is_narrow else None


def _lay_tokens_in_a_row(model: Any) -> None:
    """Lay tokens that stand in rows and columns, as in a Swin or a ConvNeXt, in a single row, for the same numbers.
    OpenVINO fuses bias, activation and rounding into an int8 product where channels are the third of three axes."""
    done: set[str] = set()
    for node in model.get_ordered_ops():
        if node.get_name() not in done and _multiplies_tokens(node) and _is_rounded(node):
            chain = [node]  # and the operators behind it that treat every token alike, while nothing else reads them
            while len(readers := chain[-1].output(0).get_target_inputs()) == 1:
                (port,) = readers
                if not _treats_tokens_alike(port.get_node(), port.get_index()):
                    break
                chain.append(port.get_node())
            done.update(each.get_name() for each in chain)
            _lay_in_a_row(chain)
    if done:
        model.validate_nodes_and_infer_types()


def _treats_tokens_alike(node: Any, index: int) -> bool:
    """Tell whether an operator that reads tokens as this input, beside constants for channels, does so."""
    if node.get_type_name() in ON_EACH_NUMBER:
        return True
    if node.get_type_name() not in WITH_CONSTANTS:
        return index == 0 and _multiplies_tokens(node)
    others = [each for number, each in enumerate(node.input_values()) if number != index]
    if any(_kind(other) != "Constant" for other in others):
        return False
    axes, shapes = len(node.input_value(index).get_partial_shape()), [list(other.get_shape()) for other in others]
    return all(len(shape) <= axes and set(shape[:-1]) <= {1} for shape in shapes)


def _multiplies_tokens(node: Any) -> bool:
    """Tell whether it is a product of weights and tokens in rows and columns, of which only the batch size varies."""
    if node.get_type_name() != "MatMul" or node.get_attributes()["transpose_a"]:
        return False
    tokens, weights = (each.get_partial_shape() for each in node.input_values())
    if tokens.rank.is_dynamic or weights.is_dynamic or len(weights) != 2:
        return False
    return len(tokens) > 3 and all(size.is_static for size in list(tokens)[1:])


def _lay_in_a_row(chain: list[Any]) -> None:
    def reshaped(output: Any, sizes: list[int]) -> Any:
        return openvino().opset13.reshape(output, np.array([0, *sizes]), special_zero=True).output(0)

    def sizes_of_a_sample(output: Any) -> list[int]:
        return [size.get_length() for size in list(output.get_partial_shape())[1:]]

    first, last = chain[0].input(0), chain[-1].output(0)
    readers, sizes = last.get_target_inputs(), sizes_of_a_sample(last)
    channels = sizes_of_a_sample(first.get_source_output())[-1]
    first.replace_source_output(reshaped(first.get_source_output(), [-1, channels]))
    for port in (port for node in chain for port in node.inputs()):
        constant = port.get_source_output()
        if _kind(constant) == "Constant" and len(constant.get_shape()) > 3:  # more axes than the tokens have now
            array = constant.get_node().data.reshape(constant.get_shape()[-3:])
            port.replace_source_output(openvino().opset13.constant(array).output(0))
    back = reshaped(last, sizes)
    for port in readers:
        port.replace_source_output(back)


def _normalize_in_bf16(model: Any) -> None:
    """Let a normalization read and write bf16 where OpenVINO converts to float32 before it and back behind it, as
    ONNX's LayerNormalization asks for. Its kernel sums in float32 all the same, and the two conversions take longer."""
    bf16 = openvino().Type.bf16
    for norm in _nodes(model, {"MVN"}):
        given, readers = norm.input_value(0), norm.output(0).get_target_inputs()
        was_bf16 = _kind(given) == "Convert" and given.get_node().input_value(0).get_element_type() == bf16
        if was_bf16 and {port.get_node().get_element_type() for port in readers} == {bf16}:
            norm.input(0).replace_source_output(given.get_node().input_value(0))
    model.validate_nodes_and_infer_types()


def _spell_out_attention(model: Any) -> None:
    """Write an attention in bf16 without a factor as the products and the Softmax that it is. OpenVINO does the same
    later, but with a factor of one, for whose sake it transposes all keys: Swin-T then takes 1.06 times as long."""
    operators = openvino().opset13
    for attention in _nodes(model, {"ScaledDotProductAttention"}):
        if attention.get_input_size() < 5:  # it has no mask, or no factor
            continue
        queries, keys, values, mask, factor = attention.input_values()
        is_added = mask.get_element_type() == openvino().Type.bf16 and not attention.get_attributes()["causal"]
        if is_added and _kind(factor) == "Constant" and (factor.get_node().get_data(dtype=np.float32) == 1).all():
            scores = operators.add(operators.matmul(queries, keys, False, True), mask)
            result = operators.matmul(operators.softmax(scores, -1), values, False, False)
            result.set_friendly_name(attention.get_friendly_name())
            result.output(0).set_names(attention.output(0).get_names())
            _replace(attention.output(0), result.output(0))

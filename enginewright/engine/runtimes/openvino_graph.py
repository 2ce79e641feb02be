"""Read an ONNX graph as OpenVINO's own model, in a form that it computes rightly and fast."""

from pathlib import Path
from typing import Any

import numpy as np

from enginewright.core.scratch import scratch_folder
from enginewright.engine.runtimes.openvino_cures import cure, openvino
from enginewright.engine.runtimes.openvino_tokens import lay_tokens_in_a_row

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
    from enginewright.graph.blocks_twin import has_blocks, spelled_out  # here, as above
    from enginewright.graph.onnx_file import load_graph
    from enginewright.graph.passes import apply_passes
    from enginewright.graph.passes.spell_out_dft import SpellOutDft

    graph = load_graph(onnx)
    if has_blocks(graph):
        return spelled_out(graph)
    has_transforms = any(node.op_type == "DFT" for node in graph.graph.node)
    return apply_passes(graph, SpellOutDft()) if has_transforms else None


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

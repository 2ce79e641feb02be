"""Simplify with onnxsim, then fold constants with Polygraphy."""

import copy
from contextlib import suppress
from pathlib import Path

import onnx
from onnx.external_data_helper import uses_external_data

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record
from enginewright.graph.onnx_file import OLDEST_OPSET, GraphCheck, at_opset, load_graph


class Simplification(Record):
    nodes_before: dict[str, int]
    nodes_after: dict[str, int]
    bytes_before: int
    bytes_after: int
    against_exported: GraphCheck


SIMPLIFY_LIMIT = 1e-5  # folding keeps the order of sums: only the last bits may change
SEQUENCES = {"SequenceConstruct", "SequenceEmpty", "SplitToSequence"}  # whose constant results are no arrays
SKIPPED = [
    "fuse_attention",  # an operator of Microsoft's own, which neither TensorRT nor a quantizer knows
    # One product whose result is split, and a product of flattened rows: OpenVINO cannot fuse bias, activation and
    # rounding into an int8 product through a Split or a Reshape.
    "fuse_qkv",
    "fuse_matmul_add_bias_into_gemm_batched",
    # The Softmax of one place as a constant: NVIDIA's builder knows the attention only as a whole, and fails otherwise.
    "eliminate_nop_softmax",
]


def simplify_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxsim  # here, since it imports PyTorch, which a reader of the record does not need

    # Raise an old graph before its tensors are measured, since that renames some. One that cannot be raised stays, as a
    # float precision does not need it.
    with suppress(EnginewrightError):
        model = at_opset(model, OLDEST_OPSET)
    simplified, ok = onnxsim.simplify(model, skipped_optimizers=SKIPPED)
    return _checked(simplified, ok)


def simplify_large_graph(path: Path, scratch: Path) -> onnx.ModelProto:
    """Simplify from file to file, as the weights are too many for memory. The result refers to a file in `scratch`."""
    import onnxsim

    target = scratch / "simplified.onnx"
    _, ok = onnxsim.simplify(str(path), skipped_optimizers=SKIPPED, output_path=str(target))
    return _checked(load_graph(target), ok)


def _checked(simplified: onnx.ModelProto, ok: bool) -> onnx.ModelProto:
    if not ok:
        raise EnginewrightError("onnxsim found that its own result computes something else than its input")
    return simplified


def fold_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with constants for what depends on constants alone, or as it is if Polygraphy cannot read it."""
    if any(node.op_type in SEQUENCES for node in model.graph.node):
        return model
    from polygraphy.backend.onnx import fold_constants as polygraphy_fold
    from polygraphy.logger import G_LOGGER

    apart = [tensor for tensor in model.graph.initializer if uses_external_data(tensor)]
    given = copy.deepcopy(model) if apart else model
    for tensor in apart:  # which Polygraphy does not find, and of which onnxsim has folded what can be computed
        given.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        given.graph.initializer.remove(tensor)
    # With shape inference, Polygraphy wrote a wrong output shape into some segmentation models.
    with G_LOGGER.verbosity(G_LOGGER.ERROR):
        folded: onnx.ModelProto = polygraphy_fold(given, do_shape_inference=False, error_ok=False)
    names = {tensor.name for tensor in apart}
    for value in [value for value in folded.graph.input if value.name in names]:
        folded.graph.input.remove(value)
    folded.graph.initializer.extend(apart)
    return folded

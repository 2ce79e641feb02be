"""Simplify with onnxsim, then fold constants with Polygraphy."""

import onnx

from enginery.core.errors import EngineryError
from enginery.core.record import Record
from enginery.graph.check import GraphCheck


class Simplification(Record):
    nodes_before: dict[str, int]
    nodes_after: dict[str, int]
    bytes_before: int
    bytes_after: int
    against_exported: GraphCheck


SIMPLIFY_LIMIT = 1e-5  # folding keeps the order of sums: only the last bits may change


def simplify_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxsim  # here, since it imports PyTorch, which a reader of the record does not need

    simplified: onnx.ModelProto
    # An Attention of Microsoft's own is an operator that neither TensorRT nor a quantizer knows.
    simplified, ok = onnxsim.simplify(model, skipped_optimizers=["fuse_attention"])
    if not ok:
        raise EngineryError("onnxsim found that its own result computes something else than its input")
    return simplified


def fold_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    from polygraphy.backend.onnx import fold_constants as polygraphy_fold
    from polygraphy.logger import G_LOGGER

    # With shape inference, Polygraphy wrote a wrong output shape into some segmentation models.
    with G_LOGGER.verbosity(G_LOGGER.ERROR):
        folded: onnx.ModelProto = polygraphy_fold(model, do_shape_inference=False, error_ok=False)
    return folded

"""Find a graph that computes the same where a runtime lacks types or operators of the one at hand."""

import onnx

from enginewright.graph.bf16_twin import float32_twin, uses_bf16
from enginewright.graph.blocks_twin import has_blocks, spelled_out


def twin_of(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return the graph in float32, each result rounded as in the graph, if it is in bf16, nvfp4 or mxfp8."""
    if has_blocks(model):
        return spelled_out(model)
    return float32_twin(model) if uses_bf16(model) else None

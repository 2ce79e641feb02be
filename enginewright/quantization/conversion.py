"""The JSON document of the stage convert, and a check of the nodes to keep in high precision."""

import re

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import Keep
from enginewright.core.record import Record
from enginewright.quantization.floats import Left


class Conversion(Record):
    precision: str
    opset: int
    nodes: dict[str, int]
    floats: tuple[Left, ...] = ()  # what a quantized graph leaves there


def kept_nodes(keep: Keep, model: onnx.ModelProto) -> set[str]:
    """Return the names of the nodes to keep in high precision."""
    return {
        node.name
        for node in model.graph.node
        if node.op_type in keep.op_types or any(re.fullmatch(pattern, node.name) for pattern in keep.nodes)
    }


def require_kept_exist(keep: Keep, model: onnx.ModelProto) -> None:
    """Refuse operators and nodes that the graph lacks, since a misspelt one would silently keep nothing."""
    types, names = {node.op_type for node in model.graph.node}, [node.name for node in model.graph.node]
    for op_type in keep.op_types:
        if op_type not in types:
            raise EnginewrightError(f"keep.op_types: the graph has no {op_type}; it has {', '.join(sorted(types))}")
    for pattern in keep.nodes:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise EnginewrightError(
                f"keep.nodes: no node of the graph is named '{pattern}', such as {', '.join(names[:3])}"
            )

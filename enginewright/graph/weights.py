"""Tell whether two graphs differ in their weights alone."""

import hashlib

import onnx
from onnx import TensorProto, numpy_helper

from enginewright.graph.data_apart import with_bodies

CALCULATED_WITH = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)  # shapes and indices, which shape an engine


def sha256_without_weights(model: onnx.ModelProto) -> str:
    """Return the hash of all that makes up a graph but the values of its weights."""
    digest = hashlib.sha256()
    for graph in with_bodies(model.graph):
        for part in (*graph.node, *graph.input, *graph.output):
            digest.update(part.SerializeToString(deterministic=True))
        for tensor in sorted(graph.initializer, key=lambda tensor: str(tensor.name)):
            digest.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}".encode())
            if tensor.data_type in CALCULATED_WITH:
                digest.update(numpy_helper.to_array(tensor).tobytes())
    digest.update(str(sorted((entry.domain, entry.version) for entry in model.opset_import)).encode())
    return digest.hexdigest()

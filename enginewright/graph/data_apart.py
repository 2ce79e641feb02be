"""Weights that are too many for an ONNX file, in a file beside it.

Protobuf, and so an ONNX file, holds 2 GB at most. A graph with more weights refers in memory to their file by its
absolute path: onnx_ir maps weights into memory when they are read, and passes that do not read them never do. The file
must stay until the graph is written again.
"""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx  # alone, since stages that only run graphs import this module, and onnx_ir takes longer to import
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor, uses_external_data

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.graph.files import data_of

MOST_BYTES = 1_500_000_000  # of weights in the ONNX file itself: tools copy some before they write 2 GB
FEWEST_BYTES = 1 << 16  # of a tensor beside it: compilers and passes read small ones, such as shapes, from the graph
DATA_SHA256 = "enginewright.data_sha256"  # so that a stage that depends on model.onnx depends on the weights, too


def is_large(model: onnx.ModelProto) -> bool:
    """Tell whether the weights need a file of their own."""
    return bytes_of_weights(model) > MOST_BYTES


def bytes_of_weights(model: onnx.ModelProto) -> int:
    """Return how many bytes the weights take, without small ones."""
    sizes = map(bytes_of, _constants(model.graph))
    return sum(size for size in sizes if size >= FEWEST_BYTES)


def has_data_apart(model: onnx.ModelProto) -> bool:
    return any(map(uses_external_data, _tensors(model.graph)))


def find_data(model: onnx.ModelProto, folder: Path) -> None:
    """Read the weights that are beside the file, or refer to them by an absolute path if they are large."""
    large = is_large(model)
    for tensor in filter(uses_external_data, _constants(model.graph)):
        if large and bytes_of(tensor) >= FEWEST_BYTES:
            _refer_to(tensor, folder)
        else:
            _take_in(tensor, folder)
    for tensor in filter(uses_external_data, _attributes(model.graph)):
        _take_in(tensor, folder)
    _forget_hash(model)


def save_in_two(model: onnx.ModelProto, path: Path) -> None:
    import onnx_ir as ir

    if any(graph.sparse_initializer for graph in with_bodies(model.graph)):  # onnx_ir would leave them out
        raise EnginewrightError(f"{path} would have sparse tensors and more than {MOST_BYTES / 1e9:.1f} GB of weights")
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        graph = Path(scratch) / path.name
        data = data_of(graph)
        ir.save(ir.from_proto(model), graph, external_data=data.name, size_threshold_bytes=FEWEST_BYTES - 1)
        referring = onnx.load(graph, load_external_data=False)
        for written, given in zip(with_bodies(referring.graph), with_bodies(model.graph), strict=True):
            del written.value_info[:]  # to which onnx_ir added the constants
            written.value_info.extend(given.value_info)
        _forget_hash(referring)
        referring.metadata_props.add(key=DATA_SHA256, value=sha256(data))
        onnx.save(referring, graph)
        data.replace(data_of(path))
        graph.replace(path)


def in_memory(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with all its weights, which may then be more than ONNX's own functions take."""
    if not has_data_apart(model):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in filter(uses_external_data, _tensors(copy.graph)):
        tensor.CopyFrom(_read(tensor))
    return copy


def array_of(tensor: TensorProto) -> NDArray[Any]:
    """Return the values of a constant, wherever they are."""
    return numpy_helper.to_array(_read(tensor) if uses_external_data(tensor) else tensor)


def with_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph, and the graphs within it: the branches of an If, the body of a Loop."""
    yield graph
    for node in graph.node:
        for body in bodies_of(node):
            yield from with_bodies(body)


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from ([attribute.g] if attribute.HasField("g") else [])
        yield from attribute.graphs


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from _constants(graph)
    yield from _attributes(graph)


def _constants(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    for each in with_bodies(graph):
        yield from each.initializer


def _attributes(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    for attribute in (attribute for each in with_bodies(graph) for node in each.node for attribute in node.attribute):
        yield from ([attribute.t] if attribute.HasField("t") else []) + list(attribute.tensors)


def bytes_of(tensor: TensorProto) -> int:
    """Return the bytes of a tensor without a look at its values, of which Protobuf would return a copy."""
    try:
        itemsize = int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    except KeyError:
        raise EnginewrightError(
            f"the ONNX file is damaged: the tensor {tensor.name} has the type {tensor.data_type}, which does not exist"
        ) from None
    return math.prod(map(int, tensor.dims)) * itemsize


def _take_in(tensor: TensorProto, folder: Path) -> None:
    load_external_data_for_tensor(tensor, str(folder))
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _refer_to(tensor: TensorProto, folder: Path) -> None:
    info, path = ExternalDataInfo(tensor), folder / ExternalDataInfo(tensor).location
    if (missing := (info.offset or 0) + (info.length or bytes_of(tensor)) - path.stat().st_size) > 0:
        raise ValueError(f"{path.name} ends {missing} bytes before {tensor.name} does")
    for entry in tensor.external_data:
        if entry.key == "location":
            entry.value = str(path)


def _read(tensor: TensorProto) -> TensorProto:
    """Return a tensor that holds what is in another file."""
    info = ExternalDataInfo(tensor)
    with open(info.location, "rb") as file:
        file.seek(info.offset or 0)
        values = file.read(info.length or bytes_of(tensor))
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=values)


def _forget_hash(model: onnx.ModelProto) -> None:
    for entry in [entry for entry in model.metadata_props if entry.key == DATA_SHA256]:
        model.metadata_props.remove(entry)

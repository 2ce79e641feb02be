"""Read and write ONNX files, count what is in them, and check what they compute."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record, new_file
from enginewright.core.text import in_one_line
from enginewright.data.feeds import Outputs, relative_error
from enginewright.graph.data_apart import find_data, has_data_apart, in_memory, is_large, save_in_two, with_bodies
from enginewright.graph.files import data_of

OLDEST_OPSET = 13  # the first of Q/DQ nodes with a scale for each channel
CALCULATED_WITH = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)  # shapes and indices, which shape an engine
NEWEST_IR = 13  # of the file formats that ONNX Runtime 1.31 reads; onnx 1.23 writes 14, which only adds types


def load_graph(path: Path) -> onnx.ModelProto:
    try:
        content = path.read_bytes()
        model = onnx.load_model_from_string(content)
        if has_data_apart(model):
            onnx.checker.check_model(str(path))
            find_data(model, path.absolute().parent)
        else:
            onnx.checker.check_model(content)  # which is faster than to check the model, which would be written anew
        model.ir_version = min(model.ir_version, NEWEST_IR)
        return model
    except FileNotFoundError:
        raise EnginewrightError(f"{path} is missing: run `dvc repro` to make it") from None
    except (DecodeError, ValueError, onnx.checker.ValidationError) as error:  # ValueError: bad weights beside the file
        with path.open("rb") as file:
            if file.read(4)[1:] == b"trt":  # engines begin with ftrt, or vtrt for RTX
                raise EnginewrightError(f"{path} is a TensorRT engine, and an ONNX file is expected") from None
        raise EnginewrightError(f"{path} is not a valid ONNX file, it may be truncated: {in_one_line(error)}") from None


def save_graph(model: onnx.ModelProto, path: Path) -> None:
    """Write the graph to one file if that holds it, else its weights to a file beside it."""
    if is_large(model):
        return save_in_two(model, path)
    with new_file(path) as temporary:
        onnx.save(in_memory(model), temporary)
    data_of(path).unlink(missing_ok=True)


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs without the weights, which old files list as inputs too."""
    constants = {tensor.name for tensor in graph.initializer}
    return [tensor for tensor in graph.input if tensor.name not in constants]


def fixed_batch(model: onnx.ModelProto) -> int | None:
    shapes = [tensor.type.tensor_type.shape.dim for tensor in graph_inputs(model.graph)]
    return next((int(shape[0].dim_value) for shape in shapes if shape and shape[0].HasField("dim_value")), None)


def count_nodes(model: onnx.ModelProto) -> dict[str, int]:
    return dict(sorted(Counter(node.op_type for node in model.graph.node).items()))


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators; a graph may use other operator sets beside them."""
    return max(int(entry.version) for entry in model.opset_import if not entry.domain)


def at_opset(model: onnx.ModelProto, oldest: int) -> onnx.ModelProto:
    """Return the graph with no older version of ONNX's operators than that."""
    if opset_of(model) >= oldest:
        return model
    try:
        return onnx.version_converter.convert_version(model, oldest)
    except Exception as error:  # ONNX's exceptions share no base class
        raise EnginewrightError(f"the graph cannot be raised to opset {oldest}: {in_one_line(error)}") from None


def sha256_without_weights(model: onnx.ModelProto) -> str:
    """Return the hash of all that makes up a graph but the values of its weights, by which two may differ."""
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


class GraphCheck(Record):
    """The distance of a graph's outputs from those that it must reproduce, on real samples."""

    samples: int
    max_abs_error: float
    relative_error: float


def check_at_each_size(expected: Sequence[Outputs], got: Sequence[Outputs], limit: float, what: str) -> GraphCheck:
    """Check the outputs at each size of the inputs, and return the check with the largest error."""
    checks = [check_graph(one, other, limit, what) for one, other in zip(expected, got, strict=True)]
    return max(checks, key=lambda check: check.relative_error)


def check_graph(expected: Outputs, got: Outputs, limit: float, what: str) -> GraphCheck:
    """Compare outputs, and refuse a graph beyond the limit, since its cause is known here and not in later stages."""
    for name, values in expected.items():
        if got[name].shape != values.shape:
            raise EnginewrightError(f"{what}: {name} has shape {got[name].shape} and should have {values.shape}")
    errors = {name: np.abs(values.astype(np.float64) - got[name]) for name, values in expected.items()}
    relative = {name: relative_error(error, expected[name]) for name, error in errors.items()}
    worst = max(relative, key=lambda name: np.inf if np.isnan(relative[name]) else relative[name])
    if not relative[worst] <= limit:  # also true for NaN
        raise EnginewrightError(
            f"{what}: the relative error of {worst} is {relative[worst]:.2e} and may be {limit:.0e} at most"
        )
    return GraphCheck(
        samples=len(expected[worst]),
        max_abs_error=max(float(error.max()) for error in errors.values()),
        relative_error=relative[worst],
    )

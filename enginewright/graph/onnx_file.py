"""Read and write ONNX files, and count what is in them."""

from collections import Counter
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_file
from enginewright.core.text import in_one_line
from enginewright.graph.data_apart import find_data, has_data_apart, in_memory, is_large, save_in_two
from enginewright.graph.files import data_of

OLDEST_OPSET = 13  # the first of Q/DQ nodes with a scale for each channel
NEWEST_IR = 13  # of the file formats that ONNX Runtime 1.31 reads; onnx 1.23 writes 14, which only adds types


def load_graph(path: Path) -> onnx.ModelProto:
    model = _load_checked(path)
    model.ir_version = min(model.ir_version, NEWEST_IR)
    return model


def _load_checked(path: Path) -> onnx.ModelProto:
    try:
        content = path.read_bytes()
        model = onnx.load_model_from_string(content)
        if not has_data_apart(model):
            onnx.checker.check_model(content)  # which is faster than to check the model, which would be written anew
            return model
        onnx.checker.check_model(str(path))
        find_data(model, path.absolute().parent)
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

"""Take the user's own ONNX file as it is, under our names for the axes that vary."""

from collections import defaultdict
from typing import Any

import onnx
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.data.feeds import FED, Axes, Feeds
from enginery.graph.onnx_file import graph_inputs


def adopt_graph(model: onnx.ModelProto, example: Feeds, axes: Axes, what: str) -> onnx.ModelProto:
    """The user's own file as it is, but that what varies is called batch, height and width, as in build.profile.

    `axes` are those of the profile; another that the file leaves open is from then on as large as in the samples.
    """
    inputs = graph_inputs(model.graph)
    names = [tensor.name for tensor in inputs]
    if sorted(names) != sorted(example):
        raise EngineryError(
            f"{what} takes {', '.join(names)}, and the samples give {', '.join(example)}: "
            "name them alike, images by samples.input"
        )
    for tensor in inputs:
        _require_fitting(tensor, example[tensor.name], what)
    meant: defaultdict[str, set[str | int]] = defaultdict(set)  # by each name of the file
    for tensor in inputs:
        for number, size in enumerate(tensor.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                ours = axes.get(number, example[tensor.name].shape[number])
                meant[size.dim_param].add(ours)
                _set_size(size, ours)
    for tensor in (*model.graph.output, *model.graph.value_info):
        for size in tensor.type.tensor_type.shape.dim:
            if size.dim_param:
                _rename(size, meant[size.dim_param], set(axes.values()))
    return model


def _require_fitting(tensor: onnx.ValueInfoProto, sample: NDArray[Any], what: str) -> None:
    """But for the batch, which is for the profile to choose."""
    shape = sample.shape
    sizes = [size.dim_value or size.dim_param or "?" for size in tensor.type.tensor_type.shape.dim]
    fits = [isinstance(size, str) or size == given for size, given in zip(sizes[1:], shape[1:], strict=False)]
    if len(sizes) != len(shape) or not all(fits):
        raise EngineryError(
            f"{what}: input {tensor.name} is ({', '.join(map(str, sizes))}), and the samples give {shape}: "
            "samples.preprocessing, or the arrays, must be as the model takes them"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.type.tensor_type.elem_type)
    if dtype != sample.dtype:
        otherwise = ", or bring arrays as samples.source" if dtype.name in FED else ""
        raise EngineryError(
            f"{what}: input {tensor.name} is {dtype}, and the samples give {sample.dtype}: images are always float32, "
            f"and arrays {', '.join(FED)}; export the model with a cast of its own{otherwise}"
        )


def _set_size(size: onnx.TensorShapeProto.Dimension, ours: str | int) -> None:
    if isinstance(ours, str):
        size.dim_param = ours
    else:
        size.dim_value = ours


def _rename(size: onnx.TensorShapeProto.Dimension, meant: set[str | int], ours: set[str]) -> None:
    """What may be one of several, or has a name of ours for something else, gets none: it would pass for that size."""
    if len(meant) == 1:
        _set_size(size, *meant)
    elif meant or size.dim_param in ours:
        size.ClearField("dim_param")

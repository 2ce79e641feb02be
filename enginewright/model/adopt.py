"""Take the user's own ONNX file as it is, with our names for the axes that vary."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx.inliner import inline_local_functions

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Profile
from enginewright.data.feeds import INPUT_TYPES, AxesOf, Feeds, Places, Run
from enginewright.graph.onnx_file import graph_inputs


def adopt_graph(model: onnx.ModelProto, example: Feeds, axes_of: AxesOf, what: str) -> onnx.ModelProto:
    """Name the axes that vary as build.profile does: batch, height, width and the user's. Write functions out, which
    compilers do not know. Change nothing else.

    `axes_of` has those of the profile, by input. Another axis that the file leaves open gets its size in the samples.
    """
    if model.functions:
        model = inline_local_functions(model)
    inputs = graph_inputs(model.graph)
    names = [tensor.name for tensor in inputs]
    if sorted(names) != sorted(example):
        raise EnginewrightError(
            f"{what} takes {', '.join(names)}, and the samples give {', '.join(example)}: "
            "use the same names, for images by samples.input"
        )
    ours_of: defaultdict[str, set[str | int]] = defaultdict(set)  # our names or sizes for each name in the file
    for tensor in inputs:
        _require_fitting(tensor, example[tensor.name], what)
        for number, size in enumerate(tensor.type.tensor_type.shape.dim):
            if not size.HasField("dim_value") and not isinstance(axes_of[tensor.name], Places):
                ours = axes_of[tensor.name].get(number, example[tensor.name].shape[number])
                ours_of[size.dim_param].add(ours)
                _set_size(size, ours)
    ours_alone = {axis for axes in axes_of.values() for axis in axes.values()}
    for tensor in (*model.graph.output, *model.graph.value_info):
        for size in tensor.type.tensor_type.shape.dim:
            if size.dim_param:
                meanings = ours_of[size.dim_param]
                if len(meanings) == 1:
                    _set_size(size, *meanings)
                elif meanings or size.dim_param in ours_alone:  # it has several, or is ours for something else
                    size.ClearField("dim_param")
    return model


def settle_sizes(model: onnx.ModelProto, run: Run, samples: Iterable[Feeds], profile: Profile) -> None:
    """Give each size of an output that only a run shows, since exporters leave a name of their own for it, the one that
    it has for all `samples`. Where inputs vary in more than their batch, such sizes may vary with them."""
    open_sizes = [
        (tensor.name, axis, size)
        for tensor in model.graph.output
        for axis, size in enumerate(tensor.type.tensor_type.shape.dim)
        if axis and not size.HasField("dim_value")
    ]
    if profile.resizes or not open_sizes:
        return
    try:
        outputs = [run(feeds) for feeds in samples]
    except EnginewrightError:
        return  # what does not fit is refused next, by name
    for name, axis, size in open_sizes:
        found = {each[name].shape[axis] for each in outputs}
        if len(found) == 1:
            _set_size(size, *found)


def _require_fitting(tensor: onnx.ValueInfoProto, sample: NDArray[Any], what: str) -> None:
    """Refuse samples of another shape or type than the input, except for the batch, which the profile chooses."""
    shape = sample.shape
    sizes = [size.dim_value or size.dim_param or "?" for size in tensor.type.tensor_type.shape.dim]
    fits = [isinstance(size, str) or size == given for size, given in zip(sizes[1:], shape[1:], strict=False)]
    if len(sizes) != len(shape) or not all(fits):
        raise EnginewrightError(
            f"{what}: input {tensor.name} is ({', '.join(map(str, sizes))}), and the samples give {shape}: "
            "samples.preprocessing, or the arrays, must be as the model takes them"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.type.tensor_type.elem_type)
    if dtype != sample.dtype:
        otherwise = ", or bring arrays as samples.source" if dtype.name in INPUT_TYPES else ""
        raise EnginewrightError(
            f"{what}: input {tensor.name} is {dtype}, and the samples give {sample.dtype}: images are always float32, "
            f"and arrays {', '.join(INPUT_TYPES)}; export the model with a cast of its own{otherwise}"
        )


def _set_size(size: onnx.TensorShapeProto.Dimension, ours: str | int) -> None:
    setattr(size, "dim_param" if isinstance(ours, str) else "dim_value", ours)

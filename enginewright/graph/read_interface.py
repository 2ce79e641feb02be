"""Read the inputs and outputs of a graph, and refuse what cannot be built."""

from pathlib import Path

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import BuildParams, Profile
from enginewright.data.feeds import BATCH
from enginewright.graph.interface import Blueprint, Interface, TensorSpec
from enginewright.graph.onnx_file import graph_inputs, load_graph
from enginewright.graph.shape_inputs import shape_inputs, values_of
from enginewright.graph.shapes import shapes_of

ENDS_A_STRING = "\"'\\$`"  # or begins something else within one, in Python, C++ or a shell
FLOATS = ("float32", "float16", "float64")
UNNAMED = "?"  # stands for an output's size that varies and has no name in the graph
INFERRED_NAME = "unk__"  # the beginning of each name that ONNX's shape inference makes up for such a size


def read_blueprint(path: Path, build: BuildParams) -> Blueprint:
    return Blueprint(read_interface(path, build.profile), build)


def read_interface(path: Path, profile: Profile) -> Interface:
    return interface_of(load_graph(path), profile, str(path))


def interface_of(model: onnx.ModelProto, profile: Profile, what: str) -> Interface:
    """Return the inputs and outputs; refuse what each runtime would refuse in its own words, or not at all."""
    graph = shapes_of(model).graph
    holding = shape_inputs(graph)
    values = {
        tensor.name: values_of(tensor, holding[tensor.name], profile, what)
        for tensor in graph_inputs(graph)
        if tensor.name in holding
    }
    inputs = tuple(
        _spec(tensor, profile, f"{what}: input", values=values.get(tensor.name, ())) for tensor in graph_inputs(graph)
    )
    outputs = tuple(_spec(tensor, profile, f"{what}: output", has_other_sizes=True) for tensor in graph.output)
    for spec in inputs:
        if spec.dtype == "object":
            raise EnginewrightError(f"{what}: input {spec.name} holds no numbers")
        if spec.values:
            continue
        if not spec.shape:
            raise EnginewrightError(f"{what}: the batch of input {spec.name}: it is a single number, and has none")
        batch, sizes = spec.shape[0], profile.batch
        if batch != BATCH and not (sizes.fixed and sizes.max == batch):
            raise EnginewrightError(
                f"{what}: the batch of input {spec.name} is fixed at {batch}, and build.profile.batch asks for "
                f"{sizes}: export with a dynamic batch, or set all three to {batch}"
            )
    batch_varies = any(spec.shape[:1] == (BATCH,) for spec in inputs)
    for spec in outputs:
        if spec.dtype not in FLOATS:
            raise EnginewrightError(
                f"{what}: output {spec.name} is {spec.dtype} and must be one of {', '.join(FLOATS)}, "
                "to be held against PyTorch"
            )
        if batch_varies and (not spec.shape or spec.shape[0] != BATCH):
            raise EnginewrightError(
                f"{what}: the batch of output {spec.name} is fixed and that of the input is not: "
                "a batch size is frozen into the graph"
            )
    return Interface(inputs=inputs, outputs=outputs)


def _spec(
    tensor: onnx.ValueInfoProto,
    profile: Profile,
    what: str,
    has_other_sizes: bool = False,
    values: tuple[str, ...] = (),
) -> TensorSpec:
    """Describe a tensor. Some of its sizes may follow from others, or from values, where it `has_other_sizes`."""
    if not tensor.type.HasField("tensor_type"):
        found = tensor.type.WhichOneof("value").removesuffix("_type")
        raise EnginewrightError(f"{what} {tensor.name} is a {found} and no tensor")
    if odd := sorted(each for each in tensor.name if each in ENDS_A_STRING or not each.isprintable()):
        raise EnginewrightError(
            f"{what} {tensor.name!r} has {odd[0]!r} in its name, which could run as code in the scripts of a bundle: "
            "rename it"
        )
    kind = tensor.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    shape = [size.dim_value if size.HasField("dim_value") else _name_of(size) for size in kind.shape.dim]
    if shape and isinstance(shape[0], str):
        shape[0] = BATCH
    for axis, size in enumerate(shape):
        if isinstance(size, str) and size not in profile.ranges:
            if not has_other_sizes:
                raise EnginewrightError(
                    f"{what} {tensor.name} has a dynamic size '{size or 'without a name'}' at axis {axis}: "
                    f"only {', '.join(profile.ranges)} may vary, as build.profile has it"
                )
            shape[axis] = size or UNNAMED
    return TensorSpec(name=tensor.name, dtype=dtype, shape=tuple(shape), values=values)


def _name_of(size: onnx.TensorShapeProto.Dimension) -> str:
    return "" if size.dim_param.startswith(INFERRED_NAME) else str(size.dim_param)

"""The inputs and outputs of a graph: names, types, and which axes vary."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from enginery.core.errors import EngineryError
from enginery.core.params.build import BuildParams, Profile, Range
from enginery.core.record import Record
from enginery.data.feeds import BATCH
from enginery.graph.onnx_file import graph_inputs, load_graph


class TensorSpec(Record):
    """A tensor of a graph and its engine; an axis that varies has its name for a size: batch, height or width.

    An output's may follow from those, and is then called as the graph does, such as height//8, or ? where that says
    nothing: how large it is, only a run tells.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.shape)

    def fits(self, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
        """Whether it may have this shape; an axis that is not among the sizes may be as large as it likes."""
        wanted = [sizes.get(size, size) if isinstance(size, str) else size for size in self.shape]
        return len(shape) == len(wanted) and all(
            found == size or (isinstance(size, str) and found >= 0) for found, size in zip(shape, wanted, strict=True)
        )


class Interface(Record):
    """What a graph takes and returns: read from it once, and the engine's from then on."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """The axes that vary, at these shapes of the inputs."""
        return {
            axis: size
            for spec in self.inputs
            for axis, size in zip(spec.shape, shapes[spec.name], strict=True)
            if isinstance(axis, str)
        }


@dataclass(frozen=True)
class Blueprint:
    """What a runtime makes an engine to be, and has to be told again to open it."""

    interface: Interface
    build: BuildParams


FLOATS = ("float32", "float16", "float64")
UNNAMED = "?"  # an output's size of which the graph says only that it varies
MADE_UP = "unk__"  # how ONNX's shape inference begins the names that it gives to those


def read_blueprint(path: Path, build: BuildParams) -> Blueprint:
    return Blueprint(read_interface(path, build.profile), build)


def read_interface(path: Path, profile: Profile) -> Interface:
    return interface_of(load_graph(path), profile, str(path))


def interface_of(model: onnx.ModelProto, profile: Profile, what: str) -> Interface:
    """The graph's inputs and outputs. Runtimes differ in what they say of graphs that cannot be built for `profile`."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    inputs = tuple(_spec(tensor, profile, f"{what}: input", follows=False) for tensor in graph_inputs(graph))
    outputs = tuple(_spec(tensor, profile, f"{what}: output", follows=profile.resizes) for tensor in graph.output)
    for spec in inputs:
        if spec.dtype == "object":
            raise EngineryError(f"{what}: input {spec.name} holds no numbers")
        _require_batch(spec, profile.batch, f"{what}: the batch of input {spec.name}")
    varies = any(spec.shape[0] == BATCH for spec in inputs)
    for spec in outputs:
        if spec.dtype not in FLOATS:
            raise EngineryError(
                f"{what}: output {spec.name} is {spec.dtype} and must be one of {', '.join(FLOATS)}, "
                "to be held against PyTorch"
            )
        if varies and (not spec.shape or spec.shape[0] != BATCH):
            raise EngineryError(
                f"{what}: the batch of output {spec.name} is fixed and that of the input is not: "
                "a batch size is frozen into the graph"
            )
    return Interface(inputs=inputs, outputs=outputs)


def _spec(tensor: onnx.ValueInfoProto, profile: Profile, what: str, follows: bool) -> TensorSpec:
    """`follows`: what varies may have another size than the profile's, for it comes of one of those."""
    if not tensor.type.HasField("tensor_type"):
        found = tensor.type.WhichOneof("value").removesuffix("_type")
        raise EngineryError(f"{what} {tensor.name} is a {found} and no tensor")
    kind = tensor.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    shape = [size.dim_value if size.HasField("dim_value") else _name_of(size) for size in kind.shape.dim]
    if shape and isinstance(shape[0], str):
        shape[0] = BATCH
    for axis, size in enumerate(shape):
        if isinstance(size, str) and size not in profile.ranges:
            if not follows:
                raise EngineryError(
                    f"{what} {tensor.name} has a dynamic size '{size or 'without a name'}' at axis {axis}: "
                    f"only {', '.join(profile.ranges)} may vary, as build.profile has it"
                )
            shape[axis] = size or UNNAMED
    return TensorSpec(name=tensor.name, dtype=dtype, shape=tuple(shape))


def _name_of(size: onnx.TensorShapeProto.Dimension) -> str:
    return "" if size.dim_param.startswith(MADE_UP) else str(size.dim_param)


def _require_batch(spec: TensorSpec, sizes: Range, what: str) -> None:
    if not spec.shape:
        raise EngineryError(f"{what}: it is a single number, and has none")
    batch = spec.shape[0]
    if batch != BATCH and not (sizes.fixed and sizes.max == batch):
        raise EngineryError(
            f"{what} is fixed at {batch}, and build.profile.batch asks for {sizes}: "
            f"export with a dynamic batch, or set all three to {batch}"
        )

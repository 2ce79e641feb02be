"""Read the inputs and outputs of a graph, and refuse what cannot be built."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import BuildParams, Profile
from enginewright.core.params.samples import IDS, MEANINGS
from enginewright.data.feeds import BATCH
from enginewright.data.sample_set import PreparedTexts
from enginewright.graph.interface import APART, Blueprint, Interface, TensorSpec
from enginewright.graph.onnx_file import graph_inputs, load_graph
from enginewright.graph.shapes import shapes_of

ENDS_A_STRING = "\"'\\$`"  # or begins something else within one, in Python, C++ or a shell
FLOATS = ("float32", "float16", "float64")
UNNAMED = "?"  # stands for an output's size that varies and has no name in the graph
INFERRED_NAME = "unk__"  # the beginning of each name that ONNX's shape inference makes up for such a size
SHAPES_AT = {  # the operands of an operator whose values are sizes, or decide them
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1,), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (2, 3),
    "Slice": (1, 2, 4), "Tile": (1,), "TopK": (1,), "Upsample": (1,),
}  # fmt: skip
PASSED_ON = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}
MOST_SPARE = 0.1  # of the rows: some models have a few more than tokens, as kernels are faster for round numbers
FEW = 128  # rows, which small tables may have to spare


def read_blueprint(path: Path, build: BuildParams) -> Blueprint:
    model = load_graph(path)
    apart = [each for each in model.graph.output if each.name in unread_outputs(model)]
    specs = tuple(_spec(each, build.profile, f"{path}: output") for each in apart)
    return Blueprint(interface_of(model, build.profile, str(path)), build, specs)


def unread_outputs(model: ModelProto) -> list[str]:
    """Return the outputs that are there so that no compiler fuses these tensors away."""
    return [name for each in model.metadata_props if each.key == APART for name in each.value.splitlines()]


def read_interface(path: Path, profile: Profile) -> Interface:
    return interface_of(load_graph(path), profile, str(path))


def interface_of(model: ModelProto, profile: Profile, what: str) -> Interface:
    """Return the inputs and outputs; refuse what each runtime would refuse in its own words, or not at all."""
    graph = shapes_of(model).graph
    fed, deciding = graph_inputs(graph), shape_inputs(graph)
    values = {each.name: values_of(each, deciding[each.name], profile, what) for each in fed if each.name in deciding}
    inputs = tuple(_spec(tensor, profile, f"{what}: input", values.get(tensor.name, ())) for tensor in fed)
    unread = unread_outputs(model)
    outputs = tuple(_spec(each, profile, f"{what}: output") for each in graph.output if each.name not in unread)
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


def _spec(tensor: ValueInfoProto, profile: Profile, what: str, values: tuple[str, ...] | None = None) -> TensorSpec:
    """Describe an input, or an output, which holds no `values`. Its sizes may follow from others, or from values."""
    if not tensor.type.HasField("tensor_type"):
        found = tensor.type.WhichOneof("value").removesuffix("_type")
        raise EnginewrightError(f"{what} {tensor.name} is a {found} and no tensor")
    if odd := sorted(each for each in tensor.name if each in ENDS_A_STRING or not each.isprintable()):
        raise EnginewrightError(
            f"{what} {tensor.name!r} has {odd[0]!r} in its name, which could run as code in the scripts of a bundle: "
            "rename it"
        )
    kind = tensor.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    shape: list[int | str] = [
        size.dim_value if size.HasField("dim_value") else str(size.dim_param) for size in kind.shape.dim
    ]
    if shape and isinstance(shape[0], str):
        shape[0] = BATCH
    for axis, size in enumerate(shape):
        if isinstance(size, str) and size not in profile.ranges:
            size = "" if size.startswith(INFERRED_NAME) else size
            if values is not None:
                raise EnginewrightError(
                    f"{what} {tensor.name} has a dynamic size '{size or 'without a name'}' at axis {axis}: "
                    f"only {', '.join(profile.ranges)} may vary, as build.profile has it"
                )
            shape[axis] = size or UNNAMED
    return TensorSpec(name=tensor.name, dtype=dtype, shape=tuple(shape), values=values or ())


def shape_inputs(graph: GraphProto) -> dict[str, NodeProto]:
    """Return the inputs whose values decide a shape, such as the sizes that a Resize is given, each with a node that
    does it: vectors or numbers of integers. Such an input has no sample in each row."""
    found = {}
    for tensor in graph_inputs(graph):
        kind = tensor.type.tensor_type
        is_integer = helper.tensor_dtype_to_np_dtype(kind.elem_type).kind in "iu"
        if is_integer and len(kind.shape.dim) < 2 and (node := _reader_of_values(graph, tensor.name)):
            found[tensor.name] = node
    return found


def values_of(tensor: ValueInfoProto, node: NodeProto, profile: Profile, what: str) -> tuple[str, ...]:
    """Return the axes whose sizes the values of an input are. TensorRT's builder needs a range for each of them."""
    dims, places = tensor.type.tensor_type.shape.dim, profile.places(tensor.name)
    count = dims[0].dim_value if dims else 1
    if sorted(places) != list(range(count)) or not count:
        each = f"each of its {count} values" if count else "a fixed number of values, and each"
        raise EnginewrightError(
            f"{what}: the values of input {tensor.name} decide a shape, in node {node.name or node.output[0]} "
            f"({node.op_type}): give {each} an axis with a range, as in build.profile.axes.NAME: "
            f"{{min: 8, opt: 16, max: 32, values: {{{tensor.name}: PLACE}}}}, and put what it holds into samples.values"
        )
    return tuple(places[place] for place in range(count))


def _reader_of_values(graph: GraphProto, name: str) -> NodeProto | None:
    """Return the first node that takes a shape from the values of an input, or from what is computed from them."""
    carried = {name}
    nodes: Sequence[NodeProto] = graph.node
    for node in nodes:  # in the order of execution
        shapes = {node.input[place] for place in SHAPES_AT.get(node.op_type, ()) if place < len(node.input)}
        if shapes & carried:
            return node
        if node.op_type != "Shape" and carried & {*node.input}:
            carried.update(node.output)
    return None


def require_fitting_vocabulary(model: ModelProto, texts: PreparedTexts | None) -> None:
    """Refuse a tokenizer whose vocabulary is not the model's: each text would get the vectors of other words."""
    if texts is None:
        return
    known, how = texts.vocabulary, texts.how
    for rows in embedded_rows(model):
        if known > rows:
            raise EnginewrightError(
                f"samples.text.tokenizer: {how.tokenizer} knows {known} tokens, and the model's embedding has "
                f"{rows} rows: it is the tokenizer of another model"
            )
        if rows - known > max(FEW, MOST_SPARE * rows) and not how.spare_rows:
            raise EnginewrightError(
                f"samples.text.tokenizer: {how.tokenizer} knows {known} tokens, and the model's embedding has "
                f"{rows} rows: it is likely the tokenizer of another model; if not, set samples.text.spare_rows: true"
            )


def embedded_rows(model: ModelProto) -> Iterator[int]:
    """Yield how many rows each table has in which a graph looks token ids up."""
    tables = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if len(tensor.dims) == 2}
    ids = {tensor.name for tensor in model.graph.input if MEANINGS.get(tensor.name) == IDS}
    for node in model.graph.node:
        if node.op_type in PASSED_ON and node.input[0] in ids:
            ids.update(node.output)
        elif node.op_type == "Gather" and node.input[0] in tables and node.input[1] in ids:
            yield tables[node.input[0]]

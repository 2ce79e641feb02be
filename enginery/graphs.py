"""ONNX graphs: reading and writing them, and asking ONNX Runtime what they mean."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError

from enginery.core.errors import EngineryError
from enginery.core.files import new_file
from enginery.core.params import BuildParams, Profile, Range
from enginery.core.records import Blueprint, GraphCheck, Interface, TensorSpec
from enginery.feeds import BATCH, Feeds, Outputs

FLOATS = ("float32", "float16", "float64")
UNNAMED = "?"  # an output's size of which the graph says only that it varies
MADE_UP = "unk__"  # how ONNX's shape inference begins the names that it gives to those


def load_graph(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except FileNotFoundError:
        raise EngineryError(f"{path} is missing: run `dvc repro` to make it") from None
    except (DecodeError, ValueError, onnx.checker.ValidationError) as error:  # the second of weights beside the file
        if is_plan(path):
            raise EngineryError(f"{path} is a TensorRT engine, and an ONNX file is expected") from None
        raise EngineryError(f"{path} is not a valid ONNX file, it may be truncated: {error}") from None
    return model


def is_plan(path: Path) -> bool:
    """TensorRT's engines begin with ftrt, those for RTX with vtrt."""
    with path.open("rb") as file:
        return file.read(4)[1:] == b"trt"


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


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """What it is fed: old files list their weights as inputs too."""
    constants = {tensor.name for tensor in graph.initializer}
    return [tensor for tensor in graph.input if tensor.name not in constants]


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


def fixed_batch(model: onnx.ModelProto) -> int | None:
    shapes = [tensor.type.tensor_type.shape.dim for tensor in graph_inputs(model.graph)]
    return next((int(shape[0].dim_value) for shape in shapes if shape and shape[0].HasField("dim_value")), None)


def save_graph(model: onnx.ModelProto, path: Path) -> None:
    with new_file(path) as temporary:
        onnx.save(model, temporary)


def count_nodes(model: onnx.ModelProto) -> dict[str, int]:
    return dict(sorted(Counter(node.op_type for node in model.graph.node).items()))


def opset_of(model: onnx.ModelProto) -> int:
    """ONNX's own; a graph may use others beside it."""
    return max(int(entry.version) for entry in model.opset_import if not entry.domain)


def arbiter(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime on the CPU with its optimizer off: what the graph says, not what a compiler made of it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, feeds: Feeds) -> Outputs:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def check_at_each_size(wanted: Sequence[Outputs], got: Sequence[Outputs], limit: float, what: str) -> GraphCheck:
    """The worst of them."""
    checks = [check_graph(one, other, limit, what) for one, other in zip(wanted, got, strict=True)]
    return max(checks, key=lambda check: check.relative_error)


def check_graph(wanted: Outputs, got: Outputs, limit: float, what: str) -> GraphCheck:
    """Compare outputs; a graph that strays past the limit stops the pipeline here, where the cause is known."""
    for name, values in wanted.items():
        if got[name].shape != values.shape:
            raise EngineryError(f"{what}: {name} has shape {got[name].shape} and should have {values.shape}")
    errors = {name: np.abs(wanted[name].astype(np.float64) - got[name]) for name in wanted}
    relative = {
        name: float(np.linalg.norm(error) / max(float(np.linalg.norm(wanted[name])), 1e-12))
        for name, error in errors.items()
    }
    worst = max(relative, key=lambda name: math.inf if math.isnan(relative[name]) else relative[name])
    if not relative[worst] <= limit:  # also true for NaN
        raise EngineryError(
            f"{what}: the relative error of {worst} is {relative[worst]:.2e} and may be {limit:.0e} at most"
        )
    return GraphCheck(
        samples=len(wanted[worst]),
        max_abs_error=max(float(error.max()) for error in errors.values()),
        relative_error=relative[worst],
    )

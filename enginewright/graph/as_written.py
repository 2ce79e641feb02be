"""Run a graph in ONNX Runtime on the CPU: as it is written, with the optimizer off, or faster, with it on.

Its CPU provider lacks types: a graph in bfloat16 runs as a twin in float32, and so does one with blocks of nvfp4 and
mxfp8, which OpenVINO lacks as well. Between operators that it lacks in float16 it rounds nothing, so that a square of
400, which is infinite there, is 160,000: what a graph in float16 means is what its twin computes.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper  # onnx_ir takes longer to import
from onnxruntime import GraphOptimizationLevel

from enginewright.core.cores import working_threads
from enginewright.core.files import scratch_folder
from enginewright.data.feeds import Feeds, Outputs, Run
from enginewright.graph.data_apart import array_of, bytes_of_weights, has_data_apart, with_bodies
from enginewright.graph.interface import APART
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.shapes import with_shapes

MOST_BYTES = 1 << 28  # of weights that are given in memory: a session keeps a copy of them beside its own
DROPS_RELU = "ReluQuantRewrite"  # of ONNX Runtime 1.31: it drops a Relu before a QuantizeLinear to float8, too


def open_as_written(model: ModelProto | Path, threads: int = 0, spins: bool = True) -> onnxruntime.InferenceSession:
    """Open a session that computes what the graph says, not what a compiler makes of it; 0 threads: `working_threads`.
    Threads that wait for work spin a while, which is fast where nothing else needs their cores."""
    return _open_session(model, GraphOptimizationLevel.ORT_DISABLE_ALL, threads, spins)


def open_optimized(model: ModelProto | Path, threads: int = 0) -> onnxruntime.InferenceSession:
    """Open a session that computes the same in two thirds of the time or less, but for the last bits of its sums."""
    twin = twin_of(load_graph(model) if isinstance(model, Path) else model)
    return _open_session(twin or model, GraphOptimizationLevel.ORT_ENABLE_ALL, threads)


def _open_session(
    model: ModelProto | Path, level: GraphOptimizationLevel, threads: int, spins: bool = True
) -> onnxruntime.InferenceSession:
    # In memory, ONNX Runtime does not find weights that are in a file elsewhere, and takes 2 GB at most.
    if isinstance(model, ModelProto) and (bytes_of_weights(model) > MOST_BYTES or has_data_apart(model)):
        with scratch_folder() as scratch:
            save_graph(model, scratch / "model.onnx")
            return _open_session(scratch / "model.onnx", level, threads, spins)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4  # what goes wrong is raised
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # what is rounded is calculated in floats
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    options.intra_op_num_threads = threads or working_threads()  # ONNX Runtime counts cores that it may not use
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(
        source, options, providers=["CPUExecutionProvider"], disabled_optimizers=[DROPS_RELU]
    )


def run_as_written(path: Path, threads: int = 0) -> Run:
    """Return what runs a graph as it is written, or as its twin in float32 where ONNX Runtime lacks its types."""
    return partial(run_graph, open_as_written(twin_of(load_graph(path)) or path, threads))


def run_optimized(model: ModelProto | Path, threads: int = 0) -> Run:
    return partial(run_graph, open_optimized(model, threads))


def run_graph(session: onnxruntime.InferenceSession, feeds: Feeds) -> Outputs:
    unread = session.get_modelmeta().custom_metadata_map.get(APART, "").splitlines()
    names = [output.name for output in session.get_outputs() if output.name not in unread]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


@contextmanager
def running_graph(folder: Path, threads: int, optimized: bool = False) -> Iterator[Run]:
    """Open the graph of a folder, whose weights may be a file of their own."""
    yield (run_optimized if optimized else run_as_written)(folder / "model.onnx", threads)


def twin_of(model: ModelProto) -> ModelProto | None:
    """Return the graph in float32, each result rounded as in the graph, if it is in 16 bits, nvfp4 or mxfp8."""
    twin = spelled_out(model) if has_blocks(model) else model
    if uses_halves(twin):
        return float32_twin(twin)
    return None if twin is model else twin


# A graph in bfloat16 or float16. Each result is rounded as arithmetic units do it: they take operands of 16 bits,
# accumulate in float32 and round once.

BF16, FP16, FP32 = TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT
HALVES = {BF16, FP16}


def uses_halves(model: ModelProto) -> bool:
    """Tell whether a constant has 16 bits, or a node casts to them."""
    kinds = {tensor.data_type for graph in with_bodies(model.graph) for tensor in graph.initializer}
    return bool(HALVES & {*kinds, *(_cast_to(node) for graph in with_bodies(model.graph) for node in graph.node)})


def float32_twin(model: ModelProto) -> ModelProto:
    """Return the graph with float32 for bfloat16 and float16, and each result rounded; leave `model` as it is. It reads
    and returns float16 where the graph does, but for bfloat16 float32, as NumPy has none."""
    twin = with_shapes(model)  # a copy that holds the type of each tensor
    ends = [each for each in (*twin.graph.input, *twin.graph.output) if each.type.tensor_type.elem_type == FP16]
    wide, nodes = {end.name: f"{end.name}.float32" for end in ends}, twin.graph.node
    for graph in reversed(list(with_bodies(twin.graph))):  # a body before its graph, which copies its nodes
        _compute_in_float32(graph)
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [wide.get(name, name) for name in names]
    for end in ends:
        end.type.tensor_type.elem_type = FP16
        if end in twin.graph.output:
            nodes.append(helper.make_node("Cast", [wide[end.name]], [end.name], to=FP16))
        else:
            nodes.insert(0, helper.make_node("Cast", [end.name], [wide[end.name]], to=FP32))
    return twin


def _compute_in_float32(graph: GraphProto) -> None:
    typed = (*graph.value_info, *graph.input, *graph.output)
    rounded = {each.name: kind for each in typed if (kind := each.type.tensor_type.elem_type) in HALVES}
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.name in rounded:
            value.type.tensor_type.elem_type = FP32
    for tensor in graph.initializer:
        if tensor.data_type in HALVES:
            tensor.CopyFrom(numpy_helper.from_array(array_of(tensor).astype(np.float32), tensor.name))
    nodes: list[NodeProto] = []
    for node in graph.node:
        if (kind := _cast_to(node)) in HALVES:
            nodes += _rounding(node.input[0], node.output[0], kind)
            continue
        results = [name for name in node.output if name in rounded]
        node.output[:] = [f"{name}.exact" if name in rounded else name for name in node.output]
        nodes += [node, *(cast for name in results for cast in _rounding(f"{name}.exact", name, rounded[name]))]
    del graph.node[:]
    graph.node.extend(nodes)


def _rounding(source: str, target: str, kind: int, switch: str = "") -> list[NodeProto]:
    """Return the nodes that round a tensor, or let it be where there is a switch that says no."""
    rounded = f"{target}.rounded" if switch else target
    nodes = [
        helper.make_node("Cast", [source], [f"{target}.half"], to=kind),
        helper.make_node("Cast", [f"{target}.half"], [rounded], to=FP32),
    ]
    return [*nodes, helper.make_node("Where", [switch, rounded, source], [target])] if switch else nodes


def in_halves(model: ModelProto, kind: int, names: Collection[str], switched: bool = False) -> ModelProto:
    """Return a graph in float32 in which the nodes of these names compute as they would in 16 bits: what they read and
    return is rounded; if they are `switched`, only where the input `switch.NODE` says so. Leave `model` as it is."""
    made, nodes, rounded = with_shapes(model), list[NodeProto](), set[str]()
    typed = (*made.graph.value_info, *made.graph.input, *made.graph.output)
    floats = {each.name for each in typed if each.type.tensor_type.elem_type == FP32}
    floats |= {each.name for each in made.graph.initializer if each.data_type == FP32}
    for node in made.graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        switch = f"switch.{node.name}" if switched else ""
        for place, name in enumerate(node.input):
            if name in floats - rounded:
                node.input[place] = f"{node.name}.{place}"
                nodes += _rounding(name, node.input[place], kind, switch)
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in floats:
                node.output[place] = f"{name}.exact"
                nodes += _rounding(node.output[place], name, kind, switch)
                rounded.update(() if switched else [name])
        if switched:
            made.graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, []))
    del made.graph.node[:], made.graph.value_info[:]
    made.graph.node.extend(nodes)
    return made


def _cast_to(node: NodeProto) -> int:
    return next((each.i for each in node.attribute if each.name == "to"), 0) if node.op_type == "Cast" else 0


# A graph with blocks of nvfp4 and mxfp8: NVIDIA's own operators in ONNX files, which round while the engine runs. The
# twin does what NVIDIA documents: a block's scale is such that its largest number becomes the largest of the type, and
# numbers are rounded to the nearest, ties to even.

DOMAIN = "trt"
FP4_QUANTIZE = "TRT_FP4DynamicQuantize"
MXFP8_QUANTIZE, MXFP8_DEQUANTIZE = "TRT_MXFP8DynamicQuantize", "TRT_MXFP8DequantizeLinear"
FP8 = TensorProto.FLOAT8E4M3FN
LARGEST_FP4, LARGEST_FP8 = 6.0, 448.0
E8M0_OF_ONE = 127  # the byte that stands for a scale of 1
TINY = 1e-30  # so that nothing is divided by zero
SLACK = 1e-5  # by which a logarithm may be too large


def has_blocks(model: ModelProto) -> bool:
    """Tell whether the graph rounds in blocks while it runs. The blocks of int4 are constants, and ONNX's own."""
    return any(node.domain == DOMAIN for node in model.graph.node)


def spelled_out(model: ModelProto) -> ModelProto:
    """Return the graph without blocks, in ONNX's own operators; leave `model` as it is."""
    twin = ModelProto()
    twin.CopyFrom(model)
    graph, written = twin.graph, list[NodeProto]()
    constants = {tensor.name: tensor for tensor in graph.initializer}
    read_as_scales = {node.input[1] for node in graph.node if node.op_type == "DequantizeLinear"}
    of_scales = {node.output[0]: node for node in graph.node if node.output[0] in read_as_scales}
    rounding = {node.output[0]: node for node in graph.node if node.op_type in (FP4_QUANTIZE, MXFP8_QUANTIZE)}
    for node in graph.node:
        makes_floats = node.op_type in ("DequantizeLinear", MXFP8_DEQUANTIZE)
        if node.output[0] in (*rounding, *of_scales):
            continue  # what makes floats of numbers and scales does their work
        if makes_floats and node.input[0] in rounding:
            written += _nodes_rounding(rounding[node.input[0]], node)
        elif node.op_type == MXFP8_DEQUANTIZE or (makes_floats and node.input[1] in of_scales):
            graph.initializer.append(_weights(node, constants, of_scales))
        else:
            written.append(node)
    del graph.node[:]
    graph.node.extend(written)
    read = {name for node in written for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(tensor)
    for entry in [entry for entry in twin.opset_import if entry.domain == DOMAIN]:
        twin.opset_import.remove(entry)
    return twin


def _weights(node: NodeProto, constants: Mapping[str, TensorProto], of_scales: Mapping[str, NodeProto]) -> TensorProto:
    """Return weights as the floats that their blocks stand for."""
    attributes, dtype = _attributes(node), np.dtype(np.float32)
    if node.op_type == MXFP8_DEQUANTIZE:
        scales = np.exp2(array_of(constants[node.input[1]]).astype(np.float32) - E8M0_OF_ONE)
        dtype = helper.tensor_dtype_to_np_dtype(attributes["output_dtype"])
    else:
        scales_in_bytes, of_tensor = (array_of(constants[name]) for name in of_scales[node.input[1]].input[:2])
        scales = scales_in_bytes.astype(np.float32) * of_tensor
    numbers = array_of(constants[node.input[0]]).astype(np.float32)
    floats = numbers * np.repeat(scales, attributes["block_size"], attributes["axis"])
    return numpy_helper.from_array(floats.astype(dtype), node.output[0])


def _nodes_rounding(quantizing: NodeProto, floats: NodeProto) -> list[NodeProto]:
    """Return the nodes that round an activation in blocks."""
    attributes = _attributes(floats)
    given, *scale = quantizing.input
    chain = Chain(floats.output[0])
    blocks = chain("Reshape", chain("Cast", given, to=FP32), [-1, attributes["block_size"]])
    amax = chain("ReduceMax", chain("Abs", blocks), [-1], keepdims=1)
    rounded = _in_fp4(chain, blocks, amax, *scale) if scale else _in_fp8(chain, blocks, amax)
    whole = chain("Reshape", rounded, chain("Shape", given))
    chain("Cast", whole, to=attributes.get("output_dtype", FP32), output=floats.output[0])
    return chain.nodes


def _in_fp4(chain: "Chain", blocks: str, amax: str, whole: str) -> str:
    """Round to 0, 0.5, 1, 1.5, 2, 3, 4 and 6 times a scale, which is float8 times the scale of the tensor."""
    scale = chain("Div", amax, chain("Mul", whole, LARGEST_FP4))
    scale = chain("Min", scale, LARGEST_FP8)  # what is beyond the calibrated range is clipped
    scale = chain("Mul", chain("Cast", chain("Cast", scale, to=FP8), to=FP32), whole)
    scaled = chain("Div", blocks, chain("Max", scale, TINY))
    scaled = chain("Clip", scaled, -LARGEST_FP4, LARGEST_FP4)
    size = chain("Abs", scaled)
    steps = chain("Where", chain("Less", size, 4.0), 1.0, 2.0)
    steps = chain("Where", chain("Less", size, 2.0), 0.5, steps)
    return chain("Mul", chain("Mul", chain("Round", chain("Div", scaled, steps)), steps), scale)


def _in_fp8(chain: "Chain", blocks: str, amax: str) -> str:
    """Round to float8 times a scale that is a power of two."""
    largest = chain("Div", chain("Max", amax, TINY), LARGEST_FP8)
    power = chain("Ceil", chain("Sub", chain("Div", chain("Log", largest), float(np.log(2))), SLACK))
    scale = chain("Pow", 2.0, power)
    scaled = chain("Clip", chain("Div", blocks, scale), -LARGEST_FP8, LARGEST_FP8)
    return chain("Mul", chain("Cast", chain("Cast", scaled, to=FP8), to=FP32), scale)


Numbers = float | list[int] | NDArray[np.float32]


class Chain:
    """Collects nodes, under names that begin with that of the last result."""

    def __init__(self, name: str) -> None:
        self.nodes: list[NodeProto] = []
        self._name = name

    def __call__(self, op_type: str, *inputs: str | Numbers, output: str = "", **attributes: Any) -> str:
        """Add a node, and constants for its inputs that are numbers. Return the name of its result."""
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        made = output or f"{self._name}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, names, [made], made, **attributes))
        return made

    def _constant(self, value: Numbers) -> str:
        array = np.asarray(value, np.int64 if isinstance(value, list) else np.float32)
        return self("Constant", value=numpy_helper.from_array(array))


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}

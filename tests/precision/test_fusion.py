"""NVIDIA's rules on Q/DQ nodes, held against what is written for TensorRT: docs/explanation/int8.md has a table."""

import re
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.pass_checks import model_of_text
from support.patterns import PATTERNS, pattern
from support.quantized import constants
from support.tensors import noise

from enginewright.core.params.precisions import Keep
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.precision import quantize as quantize_module
from enginewright.precision.calibration.calibrate import measure
from enginewright.precision.floats import nodes_beyond_int8
from enginewright.precision.fusion import mend_fusions, nodes_reading_bytes
from enginewright.precision.placement import arithmetic_nodes, ends_of_attention
from enginewright.precision.quantize import quantize

PRODUCTS = {"Conv", "Gemm", "MatMul"}
# The activations that operators other than products read as bytes in int8. In fp8 only s does, a sum.
READ_AS_BYTES = {
    "a residual sum and a pool (ResNet)": {"s": ["d"], "p": ["r"]},
    "SiLU, squeeze and excitation (EfficientNet)": {"m": ["e"], "i": ["e"], "s": ["x"]},
    "HardSwish (MobileNetV3)": {"s": ["x"]},
    "Concat (DenseNet)": {"z": ["x"], "a": ["z"], "e": ["z"], "f": ["e"], "i": ["z"], "j": ["i"]},
    "LayerNorm, GELU and a scaled branch (ConvNeXt)": {"l1": ["t1"], "l2": ["t2"], "s1": ["x0"], "s2": ["s1"]},
    "attention, LayerNorm and GELU (ViT, Swin)": {},
}
FORMS = [("int8", "fp16"), ("int8", "fp32"), ("fp8", "fp16"), ("fp8", "fp32")]
MENDED = ("SiLU", "HardSwish", "Concat", "LayerNorm")  # ModelOpt alone breaks a rule in these, in int8


@pytest.fixture(scope="module", params=PATTERNS)
def drawn(request, tmp_path_factory):
    """Return the name of a pattern, its file, a batch and the ranges in it."""
    path, graph = tmp_path_factory.mktemp("pattern") / "model.onnx", pattern(request.param)
    onnx.save(graph, path)
    shape = [size.dim_value or 4 for size in graph.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": noise(*shape)}
    return request.param, path, feeds, {name: found.amax for name, found in measure(graph, [feeds], 64).items()}


def kept(path, amax):
    """Return what the stage convert keeps in high precision."""
    return Keep(op_types=(), nodes=tuple(map(re.escape, nodes_beyond_int8(onnx.load(path), amax))))


class Reading:
    """Finds the readers and the makers in a graph with Q/DQ nodes."""

    def __init__(self, model):
        self.nodes, self.constants = list(model.graph.node), constants(model)
        self.makers = {name: node for node in self.nodes for name in node.output}

    def readers(self, name):
        return [node for node in self.nodes if name in node.input]

    def pair(self, name):
        """Return the nodes that round this operand, or None."""
        back = self.makers.get(name)
        if back is not None and back.op_type == "DequantizeLinear":
            return self.makers[back.input[0]], back
        return None

    def rounded(self, node):
        """Return the names of the activations that a node reads as bytes, without a Cast behind the graph's input."""
        names = [pair[0].input[0] for pair in map(self.pair, node.input) if pair]
        names = [self.makers[name].input[0] if name.endswith("cast_to_fp16") else name for name in names]
        return [name for name in names if name not in self.constants]

    def scales(self, *pairs):
        return {float(self.constants[node.input[1]]) for pair in pairs if pair for node in pair}


def broken_rules(model, precision):
    """Return what NVIDIA's documents advise against."""
    graph, found = Reading(model), Counter()
    for node in graph.nodes:
        pairs = [graph.pair(name) for name in node.input]
        if node.op_type in PRODUCTS:
            found["one operand of a product is not in bytes"] += bool(pairs[0]) != bool(pairs[1])
            found["a bias is in bytes"] += any(pairs[2:])
        elif node.op_type == "Add":
            found["both operands of a sum are in bytes"] += all(pairs)
        elif node.op_type == "Concat" and any(pairs):
            behind = [graph.pair(graph.readers(each.output[0])[0].output[0]) for each in graph.readers(node.output[0])]
            found["what a Concat joins has several scales"] += len(graph.scales(*pairs, *behind)) != 1
        if node.op_type != "QuantizeLinear":
            continue
        (back,) = graph.readers(node.output[0])
        kernels = {each.op_type for each in graph.readers(back.output[0])} & {*PRODUCTS, "Add"}
        found["bytes for operators without a kernel for fp8"] += precision == "fp8" and not kernels
        scale, zero = (graph.constants[name] for name in node.input[1:])
        is_weight = node.input[0] in graph.constants
        found["not symmetric"] += bool(zero.astype(np.float32).any())
        found["scales of a pair differ"] += not np.array_equal(scale, graph.constants[back.input[1]])
        found["not per tensor, or weights not per channel"] += (scale.size > 1) != is_weight
        found["rounded twice"] += [each.op_type for each in graph.readers(node.input[0])].count("QuantizeLinear") > 1
    return sorted(+found)


@pytest.mark.parametrize(("precision", "rest"), FORMS)
def test_graphs_for_tensorrt_follow_nvidias_rules(drawn, precision, rest):
    name, path, feeds, amax = drawn
    model = quantize(path, precision, amax, kept(path, amax), rest)
    onnx.checker.check_model(model)
    assert broken_rules(model, precision) == []
    graph = Reading(model)
    read = {node.name: graph.rounded(node) for node in graph.nodes if node.op_type not in PRODUCTS}
    expected = {reader: names for reader, names in READ_AS_BYTES[name].items() if precision == "int8" or reader == "s"}
    assert {reader: names for reader, names in read.items() if names} == expected
    wanted, got = (run_graph(open_as_written(each), feeds)["y"] for each in (onnx.load(path), model))
    assert 0 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.1


def test_modelopt_alone_still_breaks_them(drawn, monkeypatch):
    """If this fails because ModelOpt mends it, the module `fusion` can go."""
    name, path, _, amax = drawn
    monkeypatch.setattr(quantize_module, "mend_fusions", lambda *_: None)
    broken = broken_rules(quantize(path, "int8", amax, kept(path, amax), "fp16"), "int8")
    assert bool(broken) == name.startswith(MENDED), broken


def mended(model):
    found = ir.from_proto(model)
    mend_fusions(found)
    return ir.to_proto(found)


def test_nodes_that_modelopt_does_not_write_do_no_harm():
    """A user's file may have Q/DQ nodes of its own, which ModelOpt leaves as they are."""
    rounded = "q = QuantizeLinear (x, one, zero) d = DequantizeLinear (q, one, zero)"
    scales = {"one": np.float32(1), "two": np.float32([2, 2]), "zero": np.int8(0), "zeros": np.int8([0, 0])}
    for nodes in (
        "s = Add (d, d) y = Relu (s)",
        "e = DequantizeLinear (q, one, zero) y = Add (d, e)",
        "s = Add (d, x) y = Concat <axis = 0> (s, d)",
        "j = Concat <axis = 0> (d, x) k = QuantizeLinear (j, one, zero) l = DequantizeLinear (k, one, zero) "
        "m = DequantizeLinear (k, one, zero) y = Add (l, m)",
        "j = Concat <axis = 0> (d, x) k = QuantizeLinear <axis = 1> (j, two, zeros) "
        "y = DequantizeLinear <axis = 1> (k, two, zeros)",
        "r = Relu (one) k = QuantizeLinear (x, r, zero) l = DequantizeLinear (k, r, zero) y = Add (d, l)",
    ):
        graph = f"g (float[batch,2] x) => (float[] y) {{ {rounded} {nodes} }}"
        onnx.checker.check_model(mended(model_of_text(graph, scales)), full_check=True)


@pytest.mark.parametrize(
    ("nodes", "freed"),
    [
        ("m = Relu (x) y = MatMul (m, v)", True),
        ("m = Reshape (b, shape) y = MatMul (m, v)", False),
        ("y = MatMul (b, v)", False),
        ("m = Relu (x) y = MatMul (v, m)", True),
        ("y = MatMul (v, b)", False),
    ],
)
def test_weights_that_meet_floats_stay_floats(nodes, freed):
    constants = {"w": np.eye(2, dtype=np.float32), "s": np.float32(1), "zero": np.int8(0), "shape": np.array([2, 2])}
    rounded = "a = QuantizeLinear (x, s, zero) b = DequantizeLinear (a, s, zero)"
    weights = "u = QuantizeLinear (w, s, zero) v = DequantizeLinear (u, s, zero)"
    graph = model_of_text(f"g (float[2,2] x) => (float[2,2] y) {{ {rounded} {weights} {nodes} }}", constants)
    found = mended(graph)
    onnx.checker.check_model(found, full_check=True)
    quantized = [node.input[0] for node in found.graph.node if node.op_type == "QuantizeLinear"]
    assert ("w" in quantized) is not freed


def test_nothing_is_rounded_where_all_layers_are_spared(drawn):
    """A search tries that first, to see whether any set of layers keeps the thresholds."""
    _, path, _, amax = drawn
    graph = onnx.load(path)
    whole = quantize(path, "int8", amax, Keep(op_types=(), nodes=()), "fp16")
    layers = {*arithmetic_nodes(graph, ()), *nodes_reading_bytes(whole)}
    spared = tuple(map(re.escape, [*layers, *ends_of_attention(graph, layers)]))
    made = quantize(path, "int8", amax, Keep(op_types=(), nodes=spared), "fp16")
    assert [node.name for node in made.graph.node if node.op_type == "QuantizeLinear"] == []

import itertools
import sys

import numpy as np
import onnx
import pytest
from google.protobuf.message import EncodeError
from onnx import TensorProto, helper, numpy_helper
from support.pass_checks import model_of_text
from support.quantized import KEEP_NOTHING, KEEPS_CONVOLUTIONS

from enginewright.core.errors import EnginewrightError
from enginewright.graph.as_written import float32_twin, open_as_written, run_as_written, run_graph
from enginewright.precision.cast import calling_modelopt, cast, forget_unknown_sizes


def kept_in_float32(model):
    """Return the operators that compute on float32 weights."""
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return [
        node.name for node in model.graph.node if any(types.get(name) == TensorProto.FLOAT for name in node.input[1:])
    ]


@pytest.mark.parametrize("kept", KEEPS_CONVOLUTIONS)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_kept_nodes_stay_in_float32(tiny_onnx, precision, kept):
    assert kept_in_float32(cast(tiny_onnx, precision, KEEPS_CONVOLUTIONS[kept])) == ["conv1", "conv2"]


def test_a_node_whose_name_begins_like_that_of_a_kept_one_is_not_kept(tmp_path):
    constants = {"v": np.eye(4, dtype=np.float32), "w": np.eye(4, dtype=np.float32)}
    nodes = "[mul] a = MatMul (input, v) [mul_1] y = MatMul (a, w)"
    onnx.save(
        model_of_text(f"g (float[1,4] input) => (float[1,4] y) {{ {nodes} }}", constants), tmp_path / "model.onnx"
    )
    assert kept_in_float32(cast(tmp_path / "model.onnx", "fp16", KEEP_NOTHING.naming(["mul"]))) == ["mul"]


@pytest.mark.parametrize(("precision", "low"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)])
def test_half_precision_is_inside_and_inputs_and_outputs_stay_float32(tiny_onnx, precision, low):
    model = cast(tiny_onnx, precision, KEEP_NOTHING)
    onnx.checker.check_model(model, full_check=True)
    assert {tensor.data_type for tensor in model.graph.initializer} == {low}
    ends = [*model.graph.input, *model.graph.output]
    assert [(end.name, end.type.tensor_type.elem_type) for end in ends] == [
        ("input", TensorProto.FLOAT),
        ("logits", TensorProto.FLOAT),
    ]
    assert [node.op_type for node in model.graph.node].count("Cast") == 2


@pytest.mark.parametrize(
    ("precision", "factor", "kept"),
    [("fp16", 1e4, ["a"]), ("bf16", 1e4, []), ("bf16", float(np.finfo(np.float32).min), ["a"])],
)
def test_what_is_too_large_for_the_type_stays_in_float32(tmp_path, precision, factor, kept):
    constants = {"factor": np.full(4, factor, np.float32)}
    model = model_of_text("g (float[1,4] input) => (float[1,4] y) { a = Mul (input, factor) y = Relu (a) }", constants)
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, tmp_path / "model.onnx")
    assert kept_in_float32(cast(tmp_path / "model.onnx", precision, KEEP_NOTHING)) == kept


def test_fp16_computes_what_the_graph_computes_up_to_rounding(tiny_onnx, samples):
    graphs = (tiny_onnx, cast(tiny_onnx, "fp16", KEEP_NOTHING))
    wanted, got = (run_graph(open_as_written(graph), samples.cycled(8))["logits"] for graph in graphs)
    assert 0 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 2e-3


@pytest.mark.parametrize(
    ("scatter", "places"),
    [
        ('ScatterElements <axis = 1, reduction = "add">', [[0, 2, 2, 3]]),
        ('ScatterND <reduction = "add">', [[[0, 0], [0, 2], [0, 2], [0, 3]]]),
    ],
)
def test_sums_of_what_is_scattered_stay_in_float32(tmp_path, scatter, places):
    """Such as of messages along the edges of a graph network. ONNX Runtime's CPU provider has none in float16."""
    nodes = f"a = Relu (input) b = Sigmoid (a) c = {scatter} (a, places, b) y = Relu (c)"
    model = model_of_text(f"g (float[1,4] input) => (float[1,4] y) {{ {nodes} }}", {"places": np.array(places)})
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, tmp_path / "model.onnx")
    feeds = {"input": np.float32([[1, -2, 3, 4]])}
    graphs = (model, cast(tmp_path / "model.onnx", "fp16", KEEP_NOTHING))
    wanted, got = (run_graph(open_as_written(graph), feeds)["y"] for graph in graphs)
    assert got == pytest.approx(wanted, rel=2e-3)


def test_a_graph_that_modelopt_cannot_convert_is_refused(tiny_graph, tmp_path):
    """A user's own file may have an output of float64, for example."""
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    model.graph.node.append(helper.make_node("Cast", ["logits"], ["exact"], "widen", to=TensorProto.DOUBLE))
    model.graph.output[0].name = "exact"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(
        EnginewrightError, match=r"^ModelOpt cannot make fp16 of the graph: .*exact.*; keep what it names"
    ):
        cast(tmp_path / "model.onnx", "fp16", KEEP_NOTHING)


def test_operators_of_others_are_named_as_the_reason(tiny_graph, tmp_path):
    """ModelOpt asks TensorRT about them, by a name that it has not imported."""
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    model.graph.node.append(helper.make_node("QuickGelu", ["logits"], ["last"], "gelu", domain="com.microsoft"))
    model.graph.output[0].name = "last"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(
        EnginewrightError, match=r"^ModelOpt cannot make fp16 of the graph: it has operators that are not"
    ):
        cast(tmp_path / "model.onnx", "fp16", KEEP_NOTHING)


def test_a_target_without_modelopt_is_told_what_it_lacks(monkeypatch):
    """A mix for TensorRT is written where it is raced."""
    monkeypatch.setitem(sys.modules, "modelopt.onnx", None)
    sentence = r"^ModelOpt cannot make int8 of the graph: .*; install nvidia-modelopt, or drop the precision$"
    with pytest.raises(EnginewrightError, match=sentence), calling_modelopt("int8"):
        pass


@pytest.mark.parametrize("error", [MemoryError(), EncodeError("Failed to serialize proto")])
def test_too_little_memory_is_no_fault_of_the_graph(error):
    told = "not enough memory for ModelOpt to make int8 of the graph"
    with pytest.raises(EnginewrightError, match=told), calling_modelopt("int8"):
        raise error


@pytest.fixture(scope="module")
def unet_onnx(tmp_path_factory):
    """Save a network for images of any even size, which halves and doubles them and joins both."""
    rng = np.random.default_rng(7)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "up": (8, 8, 2, 2), "w3": (2, 16, 1, 1)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w1"], ["wide"], "conv1", pads=[1, 1, 1, 1]),
            helper.make_node("MaxPool", ["wide"], ["half"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["half", "w2"], ["deep"], "conv2", pads=[1, 1, 1, 1]),
            helper.make_node("ConvTranspose", ["deep", "up"], ["whole"], "double", strides=[2, 2]),
            helper.make_node("Concat", ["whole", "wide"], ["both"], "concat", axis=1),
            helper.make_node("Conv", ["both", "w3"], ["mask"], "conv3"),
        ],
        "unet",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 2, "height", "width"])],
        [numpy_helper.from_array(rng.normal(0, 0.3, s).astype(np.float32), name) for name, s in shapes.items()],
    )
    path = tmp_path_factory.mktemp("unet") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_a_network_that_refuses_images_of_one_pixel_is_cast(unet_onnx, precision, limit):
    converted = cast(unet_onnx, precision, KEEP_NOTHING, {"image": np.zeros((1, 3, 32, 32))})
    assert kept_in_float32(converted) == []
    given, made = (
        open_as_written(unet_onnx),
        open_as_written(float32_twin(converted) if precision == "bf16" else converted),
    )
    for size in (16, 32, 64):
        feeds = {"image": np.random.default_rng(size).normal(size=(2, 3, size, size)).astype(np.float32)}
        wanted, got = run_graph(given, feeds)["mask"], run_graph(made, feeds)["mask"]
        assert got.shape == (2, 2, size, size)
        assert 0 < np.linalg.norm(got - wanted) < limit * np.linalg.norm(wanted)


def test_a_tensor_gets_no_memory_of_a_smaller_one():
    """AutoCast calls each size of a Llama `unk`, and ONNX Runtime takes sizes of one name for equal."""
    widths = (4, 8, 16, 32, 4)
    weights = [np.ones(pair, np.float32) for pair in itertools.pairwise(widths)]
    names = ["input", *(f"m{index}" for index in range(len(weights)))]
    nodes = [
        helper.make_node("MatMul", [names[index], f"w{index}"], [names[index + 1]]) for index in range(len(weights))
    ]
    given, *inner, last = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in zip(names, (4, "unk", "unk", "unk", 4), strict=True)
    )
    constants = [numpy_helper.from_array(weight, f"w{index}") for index, weight in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", [given], [last], constants, value_info=inner)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    feeds = {"input": np.ones((3, 4), np.float32)}
    forget_unknown_sizes(model)  # without it, ONNX Runtime mostly fails: "Shape mismatch attempting to re-use buffer"
    assert [value.type.tensor_type.shape.dim[1].dim_param for value in model.graph.value_info] == ["", "", ""]
    assert run_graph(open_as_written(model), feeds)["m3"].shape == (3, 4)


def test_a_graph_that_looks_for_a_token_is_tried_on_a_sample_that_has_it(tmp_path):
    """BART reads the state of the token that ends a text, and Gather fails where there is none."""
    nodes = "s = Gather (table, ids) ends = Equal (ids, end) found = NonZero (ends)"
    nodes += " place = Gather <axis = 1> (found, last) row = Transpose (place)"
    nodes += " t = GatherND (s, row) [product] y = MatMul (t, weights)"
    constants = {"end": np.array(2), "last": np.array([-1])}
    constants |= {name: np.ones((32, 32), np.float32) for name in ("table", "weights")}
    model = model_of_text(f"agraph (int64[batch, tokens] ids) => (float[1, 32] y) {{ {nodes} }}", constants)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(EnginewrightError, match="indices element out of data bounds"):
        cast(tmp_path / "model.onnx", "fp16", KEEP_NOTHING)
    assert kept_in_float32(cast(tmp_path / "model.onnx", "fp16", KEEP_NOTHING, {"ids": np.array([[5, 7, 2]])})) == []


WIDTH = 64


@pytest.fixture(scope="module")
def spelled_out(tmp_path_factory):
    """Save a network with LayerNorms spelled out, as users' files have them (issue 4493 of NVIDIA/TensorRT)."""
    rng, nodes, stream = np.random.default_rng(0), "", "x"
    constants = {"axes": np.array([-1]), "two": np.float32(2), "tiny": np.float32(1e-5)}
    for block in range(2):
        for name in ("in", "out"):
            constants[f"{name}{block}"] = rng.normal(0, 0.2, (WIDTH, WIDTH)).astype(np.float32)
        nodes += f"""mean{block} = ReduceMean ({stream}, axes) apart{block} = Sub ({stream}, mean{block})
            square{block} = Pow (apart{block}, two) variance{block} = ReduceMean (square{block}, axes)
            more{block} = Add (variance{block}, tiny) deviation{block} = Sqrt (more{block})
            normal{block} = Div (apart{block}, deviation{block}) wide{block} = MatMul (normal{block}, in{block})
            gate{block} = Relu (wide{block}) branch{block} = MatMul (gate{block}, out{block})
            stream{block} = Add ({stream}, branch{block}) """
        stream = f"stream{block}"
    sizes, path = f"float[batch,8,{WIDTH}]", tmp_path_factory.mktemp("spelled_out") / "model.onnx"
    model = model_of_text(f"g ({sizes} x) => ({sizes} y) {{ {nodes} y = Neg (branch1) }}", constants)
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 5e-3), ("bf16", 4e-2)])
@pytest.mark.parametrize("size", [300, 1000])
def test_squares_beyond_float16_stay_in_float32_and_little_else(spelled_out, precision, limit, size, tmp_path):
    """Numbers of 300 to 1000 are well within float16, and their squares are not: without a look at samples the graph
    computes zeros. No line in params.yaml is needed."""
    rng = np.random.default_rng(size)
    samples, others = ({"x": rng.normal(0, size, (4, 8, WIDTH)).astype(np.float32)} for _ in range(2))
    blind, seen = cast(spelled_out, precision, KEEP_NOTHING), cast(spelled_out, precision, KEEP_NOTHING, samples)
    onnx.save(seen, tmp_path / "seen.onnx")
    onnx.save(blind, tmp_path / "blind.onnx")
    exact, right, wrong = (
        run_as_written(path)(others)["y"] for path in (spelled_out, tmp_path / "seen.onnx", tmp_path / "blind.onnx")
    )
    assert np.linalg.norm(right - exact) / np.linalg.norm(exact) < limit
    if precision == "fp16":
        assert np.linalg.norm(wrong - exact) / np.linalg.norm(exact) > 0.5
    values = onnx.shape_inference.infer_shapes(seen).graph.value_info
    wide = {each.name for each in values if each.type.tensor_type.elem_type == TensorProto.FLOAT}
    computed = {node.output[0].rstrip("01") for node in seen.graph.node if node.op_type != "Cast"}
    in_float32 = {"square", "variance", "more", "deviation"} if precision == "fp16" else set()
    assert {name.rstrip("01") for name in wide} & computed == in_float32

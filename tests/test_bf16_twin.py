import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginery.bf16_twin import float32_twin, uses_bf16
from enginery.convert import cast
from enginery.core.params import Keep
from enginery.graphs import arbiter, run_graph


@pytest.fixture(scope="module")
def bf16(tiny_onnx):
    return cast(tiny_onnx, "bf16", Keep(op_types=(), nodes=()))


@pytest.fixture(scope="module")
def twin(bf16):
    return float32_twin(bf16)


def rounded(values):
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def step_by_step(graph, images):
    """The tiny classifier in numpy: operands in bf16, sums in double, one rounding to bf16 after each operator."""
    weights = {tensor.name: rounded(numpy_helper.to_array(tensor)) for tensor in graph.graph.initializer}
    x = rounded(images)
    for weight, bias in (("w1", "b1"), ("w2", "b2")):
        x = np.maximum(rounded(convolution(x, weights[weight]) + weights[bias][:, None, None]), 0)
    pooled = rounded(x.mean(axis=(2, 3), dtype=np.float64))
    return rounded(pooled.astype(np.float64) @ weights["w3"].T.astype(np.float64) + weights["b3"])


def convolution(x, weight):
    """3 by 3, with a border of zeros."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    return sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + height, j : j + width], weight[:, :, i, j].astype(np.float64))
        for i in range(3)
        for j in range(3)
    )


def relative_error(got, wanted):
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


def test_bf16_is_recognized(bf16, twin, tiny_graph):
    assert uses_bf16(bf16)
    assert not uses_bf16(tiny_graph)


def test_onnx_runtime_cannot_run_the_graph_itself(bf16):
    """The day this fails, the twin has done its service."""
    with pytest.raises(Exception, match="Could not find an implementation"):
        arbiter(bf16)


def test_the_twin_computes_what_rounding_after_each_operator_gives(twin, tiny_graph, samples):
    """Sums in another order may fall on the other side of a rounding: a last bit of bf16 here and there, 2**-8."""
    feeds = samples.cycled(8)
    wanted = step_by_step(tiny_graph, feeds["input"])
    got = run_graph(arbiter(twin), feeds)["logits"]
    assert relative_error(got, wanted) < 2e-3
    assert np.mean(got == wanted) > 0.5


def test_the_twin_differs_from_float32_by_what_bf16_costs(twin, tiny_graph, samples):
    got, wanted = (run_graph(arbiter(graph), samples.cycled(8))["logits"] for graph in (twin, tiny_graph))
    assert 1e-3 < relative_error(got, wanted) < 2e-2


def test_every_result_can_be_written_in_bf16(twin, bf16, samples):
    names = [name for node in bf16.graph.node for name in node.output]
    watched = onnx.ModelProto.FromString(twin.SerializeToString())
    watched.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name != "logits")
    session = arbiter(watched)
    outputs = [output.name for output in session.get_outputs()]
    assert set(outputs) == set(names)
    for name, values in zip(outputs, session.run(outputs, samples.cycled(4)), strict=True):
        assert np.array_equal(values, rounded(values)), name


def test_every_constant_can_be_written_in_bf16(twin):
    for tensor in twin.graph.initializer:
        values = numpy_helper.to_array(tensor)
        assert values.dtype == np.float32
        assert np.array_equal(values, rounded(values))


def test_what_stays_in_float32_is_not_rounded(tiny_onnx, tiny_graph, samples):
    kept = cast(tiny_onnx, "bf16", Keep(op_types=("Gemm",), nodes=()))
    twin = float32_twin(kept)
    logits = run_graph(arbiter(twin), samples.cycled(4))["logits"]
    assert not np.array_equal(logits, rounded(logits))
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in twin.graph.initializer}
    original = {tensor.name: numpy_helper.to_array(tensor) for tensor in tiny_graph.graph.initializer}
    assert np.array_equal(constants["w3"], original["w3"])
    assert not np.array_equal(constants["w1"], original["w1"])


def test_branches_read_what_the_twin_holds_in_float32(tiny_graph, samples, tmp_path):
    """AutoCast leaves the branches of an If in float32, with casts of what they read."""
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    model.graph.node[-1].output[0] = "scores"
    branches = {
        name: helper.make_graph(
            [helper.make_node(op_type, ["scores"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "classes"])],
        )
        for name, op_type in (("then_branch", "Neg"), ("else_branch", "Identity"))
    }
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "zero"))
    model.graph.node.extend(
        [
            helper.make_node("ReduceSum", ["scores"], ["sum"], "sum", keepdims=0),
            helper.make_node("Greater", ["sum", "zero"], ["positive"], "compare"),
            helper.make_node("If", ["positive"], ["logits"], "choose", **branches),
        ]
    )
    onnx.save(model, tmp_path / "model.onnx")
    converted = cast(tmp_path / "model.onnx", "bf16", Keep(op_types=(), nodes=()))
    feeds = [{"input": sign * samples.cycled(4)["input"]} for sign in (1, -1)]
    for given in feeds:
        wanted, got = (run_graph(arbiter(graph), given)["logits"] for graph in (model, float32_twin(converted)))
        assert 1e-3 < relative_error(got, wanted) < 2e-2


def test_what_a_branch_computes_in_bf16_is_rounded_too():
    branches = {
        name: helper.make_graph(
            [helper.make_node("Mul", ["low", name], [f"{name}.of"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}.of", TensorProto.BFLOAT16, [4])],
            [numpy_helper.from_array(np.array(factor, ml_dtypes.bfloat16), name)],
        )
        for name, factor in (("then_branch", 1.0078125), ("else_branch", 3.0))
    }
    nodes = [
        helper.make_node("Cast", ["input"], ["low"], to=TensorProto.BFLOAT16),
        helper.make_node("If", ["yes"], ["chosen"], **branches),
        helper.make_node("Cast", ["chosen"], ["output"], to=TensorProto.FLOAT),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("input", "output")]
    yes = numpy_helper.from_array(np.array(True), "yes")
    graph = helper.make_graph(nodes, "branches", info[:1], info[1:], [yes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    values = np.array([1.0078125, 3.1, -7.7, 0.3], np.float32)
    got = run_graph(arbiter(float32_twin(model)), {"input": values})["output"]
    assert np.array_equal(got, rounded(rounded(values) * np.float32(1.0078125)))
    assert not np.array_equal(got, rounded(values) * np.float32(1.0078125))


def test_the_graph_itself_is_left_as_it_was(bf16):
    before = bf16.SerializeToString()
    float32_twin(bf16)
    assert bf16.SerializeToString() == before

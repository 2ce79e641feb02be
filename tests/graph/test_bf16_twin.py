import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.pass_checks import autocast, model_of_text, session_of

from enginewright.graph.as_written import float32_twin, uses_halves


@pytest.fixture(scope="module")
def classifier():
    """A small convolutional classifier in float32."""
    rng = np.random.default_rng(7)
    shapes = {
        "w1": (32, 3, 3, 3),
        "b1": (32,),
        "w2": (32, 32, 3, 3),
        "b2": (32,),
        "w3": (16, 32),
        "b3": (16,),
    }
    graph = """
        g (float[batch, 3, 8, 8] input) => (float[batch, 16] logits) {
            [conv1] conv = Conv <pads = [1, 1, 1, 1]> (input, w1, b1)
            [relu1] relu = Relu (conv)
            [conv2] conv_2 = Conv <pads = [1, 1, 1, 1]> (relu, w2, b2)
            [relu2] relu_2 = Relu (conv_2)
            [pool] pooled = GlobalAveragePool (relu_2)
            [flatten] features = Flatten (pooled)
            [classifier] logits = Gemm <transB = 1> (features, w3, b3)
        }"""
    return model_of_text(
        graph, {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}, opset=22
    )


@pytest.fixture(scope="module")
def bf16(classifier, tmp_path_factory):
    return autocast(classifier, "bf16", tmp_path_factory.mktemp("bf16"))


@pytest.fixture(scope="module")
def twin(bf16):
    return float32_twin(bf16)


def images(count):
    return np.random.default_rng(0).uniform(-1, 1, (count, 3, 8, 8)).astype(np.float32)


def output_of(model, values):
    return session_of(model).run(None, {"input": values})[0]


def rounded(values):
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def step_by_step(model, values):
    """Compute the classifier in numpy: operands in bf16, sums in double, one rounding after each operator."""
    weights = {tensor.name: rounded(numpy_helper.to_array(tensor)) for tensor in model.graph.initializer}
    x = rounded(values)
    for weight, bias in (("w1", "b1"), ("w2", "b2")):
        x = np.maximum(rounded(convolution(x, weights[weight]) + weights[bias][:, None, None]), 0)
    pooled = rounded(x.mean(axis=(2, 3), dtype=np.float64))
    return rounded(pooled.astype(np.float64) @ weights["w3"].T.astype(np.float64) + weights["b3"])


def convolution(x, weight):
    """Convolve 3 by 3, with a border of zeros."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    return sum(
        np.einsum("nchw,oc->nohw", padded[:, :, i : i + height, j : j + width], weight[:, :, i, j].astype(np.float64))
        for i in range(3)
        for j in range(3)
    )


def relative_error(got, wanted):
    return np.linalg.norm(got - wanted) / np.linalg.norm(wanted)


def test_bf16_is_recognized(bf16, classifier):
    assert uses_halves(bf16)
    assert not uses_halves(classifier)


def test_bf16_is_recognized_in_a_branch():
    assert uses_halves(branches_in_bf16(cast_inside=True))


def test_onnx_runtime_cannot_run_the_graph_itself(bf16):
    """Once this fails, the twin can go."""
    with pytest.raises(Exception, match="Could not find an implementation"):
        session_of(bf16)


def test_the_twin_rounds_after_each_operator(twin, classifier):
    """Sums in another order may round to the other side, and differ in the last bit of bf16, by 2**-8."""
    wanted, got = step_by_step(classifier, images(8)), output_of(twin, images(8))
    assert relative_error(got, wanted) < 2e-3
    assert np.mean(got == wanted) > 0.5


def test_the_twin_differs_from_float32_by_what_bf16_costs(twin, classifier):
    assert 1e-3 < relative_error(output_of(twin, images(8)), output_of(classifier, images(8))) < 2e-2


def test_the_twin_has_the_names_and_types_of_the_graph(twin, bf16):
    for wanted, got in ((bf16.graph.input, twin.graph.input), (bf16.graph.output, twin.graph.output)):
        assert list(wanted) == list(got)


def test_every_result_can_be_written_in_bf16(twin, bf16):
    names = [name for node in bf16.graph.node for name in node.output]
    watched = onnx.ModelProto.FromString(twin.SerializeToString())
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name != "logits")
    session = session_of(watched)
    outputs = [output.name for output in session.get_outputs()]
    assert set(outputs) == set(names)
    for name, values in zip(outputs, session.run(outputs, {"input": images(4)}), strict=True):
        assert np.array_equal(values, rounded(values)), name


def test_every_constant_can_be_written_in_bf16(twin):
    for tensor in twin.graph.initializer:
        values = numpy_helper.to_array(tensor)
        assert values.dtype == np.float32
        assert np.array_equal(values, rounded(values))


def test_nodes_that_stay_in_float32_are_not_rounded(classifier, tmp_path):
    twin = float32_twin(autocast(classifier, "bf16", tmp_path, keep=("Gemm",)))
    logits = output_of(twin, images(4))
    assert not np.array_equal(logits, rounded(logits))
    constants, given = (
        {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for model in (twin, classifier)
    )
    assert np.array_equal(constants["w3"], given["w3"])
    assert not np.array_equal(constants["w1"], given["w1"])


def test_inputs_and_outputs_in_bf16_become_float32():
    graph = "g (bfloat16[2] input) => (bfloat16[2] y) { a = Add (input, input) y = Mul (a, a) }"
    values = np.array([1.0078125, 3.1], np.float32)
    twin = float32_twin(model_of_text(graph, opset=22))
    assert np.array_equal(output_of(twin, values), rounded(rounded(2 * values) ** 2))


def test_branches_in_float32_read_tensors_of_the_twin(classifier, tmp_path):
    """AutoCast leaves the branches of an If in float32, with casts of what they read."""
    model = onnx.ModelProto.FromString(classifier.SerializeToString())
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
    twin = float32_twin(autocast(model, "bf16", tmp_path))
    for values in (images(4), -images(4)):
        assert 1e-3 < relative_error(output_of(twin, values), output_of(model, values)) < 2e-2


def branches_in_bf16(cast_inside):
    """Return an If whose branches multiply in bfloat16, by a cast of their own or one of the graph around them."""
    low, read = ("low", "") if cast_inside else ("input_low", "input_low = Cast <to = 16> (input)")
    inside = "low = Cast <to = 16> (input)" if cast_inside else ""
    result = "float" if cast_inside else "bfloat16"
    last = "last = Cast <to = 1> (product)" if cast_inside else "last = Identity (product)"

    def branch(name, factor):
        constant = f"f = Constant <value_float = {factor}> () factor = Cast <to = 16> (f)"
        return f"{name} () => ({result}[4] last) {{ {inside} {constant} product = Mul ({low}, factor) {last} }}"

    graph = f"""
        g (float[4] input) => (float[4] output) {{
            {read}
            chosen = If (yes) <then_branch = {branch("a", 1.0078125)}, else_branch = {branch("b", 3.0)}>
            output = Cast <to = 1> (chosen)
        }}"""
    return model_of_text(graph, {"yes": True}, opset=22)


@pytest.mark.parametrize("cast_inside", [False, True])
def test_results_in_bf16_in_a_branch_are_rounded(cast_inside):
    values = np.array([1.0078125, 3.1, -7.7, 0.3], np.float32)
    got = output_of(float32_twin(branches_in_bf16(cast_inside)), values)
    assert np.array_equal(got, rounded(rounded(values) * np.float32(1.0078125)))
    assert not np.array_equal(got, rounded(values) * np.float32(1.0078125))


def test_a_constant_of_a_branch_and_a_body_in_it_are_rounded():
    graph = """
        g (float[4] input) => (float[4] output) {
            low = Cast <to = 16> (input)
            chosen = If (yes) <
                then_branch = a () => (bfloat16[4] outer) {
                    outer = If (yes) <
                        then_branch = c () => (bfloat16[4] inner) { inner = Mul (low, factor) },
                        else_branch = d () => (bfloat16[4] same) { same = Identity (low) }
                    >
                },
                else_branch = b () => (bfloat16[4] other) { other = Identity (low) }
            >
            output = Cast <to = 1> (chosen)
        }"""
    model = model_of_text(graph, {"yes": True, "factor": np.array(1.0078125, ml_dtypes.bfloat16)}, opset=22)
    model.graph.node[1].attribute[0].g.initializer.append(model.graph.initializer.pop(1))
    values = np.array([1.0078125, 3.1, -7.7, 0.3], np.float32)
    got = output_of(float32_twin(model), values)
    assert np.array_equal(got, rounded(rounded(values) * np.float32(1.0078125)))


def test_the_graph_itself_is_left_as_it_was(bf16):
    before = bf16.SerializeToString()
    float32_twin(bf16)
    assert bf16.SerializeToString() == before

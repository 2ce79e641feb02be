import numpy as np
import onnx
import openvino
import pytest
from onnx import numpy_helper
from support.pass_checks import BODIES, all_nodes, apply_pass, model_of_text, model_with_body

from enginewright.graph.passes import name_squeezed_axes


def squeezes(model):
    return [node for node in all_nodes(model) if node.op_type == "Squeeze"]


def axes_of(model):
    return [node.inputs[1].const_value.numpy().tolist() for node in squeezes(model)]


def squeeze_and_view(opset=20):
    """Return what the exporter makes of `pooled.squeeze().view(len(images), -1)`."""
    graph = """
        g (float[batch, 6, 4, 4] input) => (float[] y) {
            pooled = GlobalAveragePool (input)
            bare = Squeeze (pooled)
            seen = Relu (bare)
            y = Reshape (seen, shape)
        }"""
    return model_of_text(graph, {"shape": np.array([-1, 6])}, opset=opset)


def test_the_axes_of_a_squeeze_are_named_where_the_batch_varies():
    assert axes_of(apply_pass(name_squeezed_axes, squeeze_and_view())) == [[2, 3]]


def test_openvino_then_builds_it_for_a_batch_that_may_be_one():
    after, core = apply_pass(name_squeezed_axes, squeeze_and_view()), openvino.Core()

    def compiled(model):
        read = core.read_model(model.SerializeToString())
        read.reshape({"input": openvino.PartialShape([openvino.Dimension(1, 4), 6, 4, 4])})
        return core.compile_model(read, "CPU")

    for batch in (1, 2):
        images = np.random.default_rng(0).normal(size=(batch, 6, 4, 4)).astype(np.float32)
        (result,) = compiled(after)([images]).values()
        assert result == pytest.approx(np.maximum(images.mean((2, 3)), 0), abs=1e-6)
    with pytest.raises(RuntimeError, match=r"(?i)squeeze|rank|shape"):  # once this fails, the pass can go
        compiled(squeeze_and_view())


@pytest.mark.parametrize(
    ("before", "opset"),
    [
        ("bare = Squeeze (input, axes)", 20),
        ("bare = Squeeze <axes = [1]> (input)", 12),
        ("bare = Squeeze (input)", 12),
        ("values = Unique (input) bare = Squeeze (values)", 20),
        ("sizes = Shape <start = 1, end = 2> (input) size = Cast <to = 1> (sizes) bare = Squeeze (size)", 20),
        ("cut = NonZero (input) cast = Cast <to = 1> (cut) bare = Squeeze (cast)", 20),
    ],
    ids=["named", "named before opset 13", "before opset 13", "of unknown sizes", "of known sizes", "of its own sizes"],
)
def test_a_squeeze_whose_axes_are_named_or_not_known_stays(before, opset):
    constants = {"axes": np.array([1]), "flat": np.array([-1])}
    graph = f"g (float[batch, 1, 4] input) => (float[] y) {{ {before} y = Reshape (bare, flat) }}"
    model = model_of_text(graph, constants, opset=opset)
    wanted = [[value.name for value in node.inputs] for node in squeezes(model)]
    after = apply_pass(name_squeezed_axes, model)
    assert [[value.name for value in node.inputs] for node in squeezes(after)] == wanted


def test_a_size_that_only_an_old_files_weights_have_is_not_the_batch():
    graph = """
        g (float[batch, 4] input, float[rows, 1, 4] w) => (float[] y) {
            bare = Squeeze (w)
            sum = Add (input, bare)
            y = Reshape (sum, shape)
        }"""
    model = model_of_text(graph, {"shape": np.array([-1, 4])})
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1, 4), np.float32), "w"))
    onnx.checker.check_model(model)
    assert [len(node.inputs) for node in squeezes(apply_pass(name_squeezed_axes, model))] == [1]


@pytest.mark.parametrize("kind", BODIES)
def test_the_axes_of_a_squeeze_in_a_body_are_named_there(kind):
    nodes = "p = GlobalAveragePool (x) b = Squeeze (p) r = Reshape (b, shape)"
    model = model_with_body(kind, nodes, (6, 4, 4), {"shape": np.array([-1, 6])})
    after = apply_pass(name_squeezed_axes, model, batches=(5,))
    assert axes_of(after) == [[2, 3]] * (2 if kind == "If" else 1)

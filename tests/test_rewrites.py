"""Each rewrite on the smallest graph that shows the trouble: it is gone, and the graph computes what it computed."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginery.convert import cast, quantize
from enginery.core.errors import EngineryError
from enginery.core.params import Keep, Profile, Range
from enginery.graphs import arbiter, count_nodes, load_graph, read_blueprint, save_graph
from enginery.rewrites import rewrite_graph
from enginery.runtimes import load_runtime

EVERYTHING = Keep(op_types=(), nodes=())


def graph_of(nodes, shape, constants=(), outputs=("y",)):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    typed = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(typed, full_check=True)
    return typed


def weights(*shape):
    return np.random.default_rng(1).normal(0, 0.3, shape).astype(np.float32)


def computed(model, batch=5):
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim][1:]
    (output,) = arbiter(model).run(None, {"input": np.random.default_rng(0).normal(size=(batch, *shape)).astype("f")})
    return output


def rewritten(model):
    """Checked as the simplify stage checks it, at batches that no constant was made for."""
    before = model.SerializeToString()
    after = rewrite_graph(model)
    assert model.SerializeToString() == before
    onnx.checker.check_model(after, full_check=True)
    for batch in (1, 5):
        assert computed(after, batch) == pytest.approx(computed(model, batch), abs=1e-6)
    return after


def test_the_axes_of_a_squeeze_are_named_where_the_batch_varies(tmp_path, build, inference):
    """As of `pooled.squeeze().view(len(images), -1)`: OpenVINO does not build it where the batch may be one."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["input"], ["pooled"]),
        helper.make_node("Squeeze", ["pooled"], ["bare"]),
        helper.make_node("Relu", ["bare"], ["seen"]),
        helper.make_node("Reshape", ["seen", "shape"], ["y"]),
    ]
    model = rewritten(graph_of(nodes, (6, 4, 4), {"shape": np.array([-1, 6])}))
    (squeeze,) = [node for node in model.graph.node if node.op_type == "Squeeze"]
    (axes,) = [tensor for tensor in model.graph.initializer if tensor.name == squeeze.input[1]]
    assert numpy_helper.to_array(axes).tolist() == [2, 3]
    save_graph(model, tmp_path / "model.onnx")
    from_one = build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=2, max=4))})
    runtime, blueprint = load_runtime("openvino"), read_blueprint(tmp_path / "model.onnx", from_one)
    runtime.compile(tmp_path / "model.onnx", blueprint, tmp_path)
    (session,) = runtime.load(tmp_path, blueprint, inference, requests=1)
    for batch in (1, 2):
        images = np.random.default_rng(0).normal(size=(batch, 6, 4, 4)).astype(np.float32)
        assert session.run({"input": images})["y"] == pytest.approx(np.maximum(images.mean((2, 3)), 0), abs=1e-6)


@pytest.mark.parametrize("kind", ["named", "without sizes", "of known sizes"])
def test_a_squeeze_whose_axes_are_said_or_not_known_stays(kind):
    before = {
        "named": [helper.make_node("Squeeze", ["input", "axes"], ["bare"])],
        "without sizes": [
            helper.make_node("Unique", ["input"], ["values"]),
            helper.make_node("Squeeze", ["values"], ["bare"]),
        ],
        "of known sizes": [
            helper.make_node("Shape", ["input"], ["sizes"], start=1, end=2),
            helper.make_node("Cast", ["sizes"], ["size"], to=TensorProto.FLOAT),
            helper.make_node("Squeeze", ["size"], ["bare"]),
        ],
    }[kind]
    last = helper.make_node("Reshape", ["bare", "flat"], ["y"])
    model = graph_of([*before, last], (1, 4), {"axes": np.array([1]), "flat": np.array([-1])})
    inputs = [list(node.input) for node in rewrite_graph(model).graph.node if node.op_type == "Squeeze"]
    assert inputs == [list(node.input) for node in before if node.op_type == "Squeeze"]


def strided_copy(channels=6, rows="images", width=None, start=0, by=1, offsets=None, batch_axis=0):
    """What PyTorch's exporter makes of AdaptiveAvgPool2d(1)."""
    nodes = [
        helper.make_node("Shape", ["input"], ["shape"], start=batch_axis, end=batch_axis + 1),
        helper.make_node("Squeeze", ["shape"], ["images"]),
        helper.make_node("Conv", ["input", "w"], ["conv"], "conv"),
        helper.make_node("ReduceMean", ["conv", "axes"], ["mean"], keepdims=1),
        helper.make_node("Reshape", ["mean", "all"], ["flat"]),
        helper.make_node("Range", ["start", rows, "by"], ["range"]),
        helper.make_node("Mul", ["range", "width"], ["firsts"]),
        helper.make_node("Unsqueeze", ["firsts", "behind"], ["columns"]),
        helper.make_node("Add", ["columns", "offsets"], ["order"]),
        helper.make_node("Gather", ["flat", "order"], ["copied"], "copy"),
        helper.make_node("Relu", ["copied"], ["y"], "relu"),
    ]
    width = channels if width is None else width
    order = np.arange(width) if offsets is None else np.array(offsets)
    constants = {
        "axes": [-1, -2], "all": [-1], "behind": [1, 2, 3], "start": start, "by": by, "width": width, "one": 1,
        "offsets": order.reshape(1, -1, 1, 1), "w": weights(channels, 6, 1, 1),
    }  # fmt: skip
    return graph_of(nodes, (6, 6, 4), constants)


def test_a_copy_by_strides_becomes_a_reshape():
    assert count_nodes(rewritten(strided_copy())) == {"Conv": 1, "ReduceMean": 1, "Relu": 1, "Reshape": 1}


@pytest.mark.parametrize(
    "other",
    [
        {"offsets": [1, 0, 2, 3, 4, 5]},
        {"offsets": [0, 1, 2]},
        {"width": 5},
        {"rows": "one"},
        {"start": 1},
        {"by": 2},
        {"batch_axis": 1},
    ],
    ids=str,
)
def test_a_gather_of_anything_else_stays(other):
    model = strided_copy(**other)
    assert count_nodes(rewrite_graph(model))["Gather"] == 1


def test_float16_then_needs_no_casts_but_at_both_ends(tmp_path):
    """AutoCast leaves a Gather in float32 whose indices are large, as it leaves all that holds large numbers."""
    model = strided_copy(channels=600)
    for name, each in {"before": model, "after": rewrite_graph(model)}.items():
        save_graph(each, tmp_path / f"{name}.onnx")
    before, after = (cast(tmp_path / f"{name}.onnx", "fp16", EVERYTHING) for name in ("before", "after"))
    assert count_nodes(after)["Cast"] == 2
    assert count_nodes(before)["Cast"] > 2


def pooling(**settings):
    pool = {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "count_include_pad": 1, "strides": [2, 1]} | settings
    return graph_of([helper.make_node("AveragePool", ["input"], ["y"], "pool", **pool)], (3, 9, 8))


def test_padding_that_counts_becomes_a_node():
    after = rewritten(pooling())
    assert [node.op_type for node in after.graph.node] == ["Pad", "AveragePool"]
    settings = {attribute.name: helper.get_attribute_value(attribute) for attribute in after.graph.node[1].attribute}
    assert settings == {"kernel_shape": [3, 3], "strides": [2, 1]}


@pytest.mark.parametrize("settings", [{"pads": [0, 0, 0, 0]}, {"count_include_pad": 0}, {"ceil_mode": 1}], ids=str)
def test_other_pooling_stays(settings):
    assert count_nodes(rewritten(pooling(**settings))) == {"AveragePool": 1}


def test_hard_swish_is_spelt_out_and_nvidia_reads_it_in_bf16(tmp_path, build):
    swish = graph_of(
        [helper.make_node("Conv", ["input", "w"], ["c"], "conv"), helper.make_node("HardSwish", ["c"], ["y"], "swish")],
        (32, 4, 4),
        {"w": weights(32, 32, 1, 1)},
    )
    after = rewritten(swish)
    assert count_nodes(after) == {"Conv": 1, "HardSigmoid": 1, "Mul": 1}
    nvidia = load_runtime("tensorrt_rtx")
    if nvidia.missing():
        pytest.skip(nvidia.missing())

    def compile_bf16(model, name):
        save_graph(model, tmp_path / f"{name}.onnx")
        save_graph(cast(tmp_path / f"{name}.onnx", "bf16", EVERYTHING), tmp_path / f"{name}.bf16.onnx")
        typed = tmp_path / f"{name}.bf16.onnx"
        nvidia.compile(typed, read_blueprint(typed, build), tmp_path)

    compile_bf16(after, "after")
    with pytest.raises(EngineryError, match="HardSwish"):  # once it is taken, the rewrite can go
        compile_bf16(swish, "before")


@pytest.mark.parametrize("equation", ["bcI,Id->bcd", "bAc,cI->bAI", "aBc,cA->aBA", "bij,jk->bik"])
def test_equations_get_small_letters_and_keep_their_meaning(equation):
    model = graph_of(
        [helper.make_node("Einsum", ["input", "w"], ["y"], "product", equation=equation)], (6, 5), {"w": weights(5, 4)}
    )
    (node,) = rewritten(model).graph.node
    (after,) = (attribute.s.decode() for attribute in node.attribute)
    assert after == after.lower()
    assert len(set(after)) == len(set(equation))


def chain(inner):
    nodes = [
        helper.make_node("Conv", ["input", "w1"], ["conv"], "conv1"),
        helper.make_node("Relu", ["conv"], [inner], "relu1"),
        helper.make_node("Conv", [inner, "w2"], ["y"], "conv2"),
    ]
    return graph_of(nodes, (32, 4, 4), {"w1": weights(32, 32, 1, 1), "w2": weights(32, 32, 1, 1)})


@pytest.mark.parametrize("inner", ["act_scale", "conv_scale", "act_scale_factor", "layer: act", "a:b_scale"])
def test_a_tensor_of_any_name_is_quantized(inner, tmp_path):
    after = rewritten(chain(inner))
    path = tmp_path / "model.onnx"
    save_graph(after, path)
    names = ["input", *(node.output[0] for node in after.graph.node)]
    quantized = quantize(path, "int8", dict.fromkeys(names, 2.54), EVERYTHING, rest="fp32")
    assert count_nodes(quantized)["QuantizeLinear"] == count_nodes(quantized_plain(tmp_path))["QuantizeLinear"]


def quantized_plain(folder: Path):
    save_graph(chain("relu"), folder / "plain.onnx")
    return quantize(
        folder / "plain.onnx", "int8", dict.fromkeys(["input", "conv", "relu", "y"], 2.54), EVERYTHING, "fp32"
    )


def test_two_names_that_would_become_one_stay_two():
    model = graph_of(
        [
            helper.make_node("Relu", ["input"], ["x:y"], "one"),
            helper.make_node("Neg", ["input"], ["x.y"], "two"),
            helper.make_node("Add", ["x:y", "x.y"], ["y"], "sum"),
        ],
        (2,),
    )
    assert len({name for node in rewritten(model).graph.node for name in node.output}) == 3


def test_inputs_and_outputs_keep_their_names():
    model = graph_of([helper.make_node("Relu", ["input"], ["y_scale"], "relu")], (2,), outputs=["y_scale"])
    assert [output.name for output in rewritten(model).graph.output] == ["y_scale"]


def test_a_graph_without_any_of_it_stays_as_it_is(tiny_graph, tiny_onnx):
    assert list(rewrite_graph(tiny_graph).graph.node) == list(load_graph(tiny_onnx).graph.node)


def test_a_graph_with_graphs_inside_stays_as_it_is():
    def branch(*nodes):
        return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)])

    model = graph_of(
        [
            helper.make_node("Relu", ["input"], ["x_scale"], "relu"),
            helper.make_node(
                "If",
                ["yes"],
                ["y"],
                "if",
                then_branch=branch(helper.make_node("Neg", ["x_scale"], ["out"])),
                else_branch=branch(helper.make_node("Abs", ["x_scale"], ["out"])),
            ),
        ],
        (2,),
        {"yes": True},
    )
    assert rewritten(model) == model

"""Find what must not be quantized by the pattern of the graph."""

import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginewright.precision.dialect import dialect_of
from enginewright.precision.floats import nodes_beyond_int8, nodes_in_floats

MASKED = -3.4e38


def model(*nodes, constants=()):
    named = [helper.make_node(kind, reads, [name], name, **options) for name, kind, reads, options in nodes]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", nodes[-1][0])]
    return helper.make_model(helper.make_graph(named, "g", ends[:1], ends[1:], tensors))


ATTENTION = model(
    ("q", "MatMul", ["x", "w"], {}),
    ("scores", "MatMul", ["q", "q"], {}),
    ("scaled", "Div", ["scores", "eight"], {}),
    ("masked", "Add", ["scaled", "mask"], {}),
    ("share", "Softmax", ["masked"], {}),
    ("seen", "MatMul", ["share", "q"], {}),
    ("residual", "Add", ["seen", "x"], {}),
    ("normal", "LayerNormalization", ["residual", "g"], {}),
    ("hidden", "MatMul", ["normal", "w"], {}),
    ("biased", "Add", ["hidden", "bias"], {}),
    ("bent", "Relu", ["biased"], {}),
)
PARTS = model(  # of a LayerNorm whose mean is written out
    ("sum", "Add", ["x", "x"], {}),
    ("mean", "ReduceMean", ["sum", "last"], {}),
    ("centred", "Sub", ["sum", "mean"], {}),
    constants=[("last", np.array([-1]))],
)
SQUARES = {  # of an RMSNorm in parts
    kind: model(
        ("sum", "Add", ["x", "x"], {}),
        ("square", kind, ["sum", "sum" if kind == "Mul" else "two"], {}),
        ("mean", "ReduceMean", ["square", "last"], {}),
        ("size", "Sqrt", ["mean"], {}),
        constants=[("two", np.float32(2)), ("last", np.array([-1]))],
    )
    for kind in ("Mul", "Pow")
}
RESIDUAL = model(  # of a convolutional network
    ("conv", "Conv", ["x", "w"], {}),
    ("sum", "Add", ["conv", "x"], {}),
    ("relu", "Relu", ["sum"], {}),
    ("mean", "ReduceMean", ["relu", "size"], {}),
    ("gate", "Sigmoid", ["mean"], {}),
    constants=[("size", np.array([2, 3]))],
)
# The mean of a stream of sums, as before the last normalization of ConvNeXt; and half of one, as of Swin's neighbours.
GATHERED = model(
    ("conv", "Conv", ["x", "w"], {}),
    ("stream", "Add", ["conv", "x"], {}),
    ("mean", "ReduceMean", ["stream", "size"], {}),
    ("half", "Slice", ["mean", "begin", "end"], {}),
    ("norm", "LayerNormalization", ["half", "w"], {}),
    constants=[("size", np.array([2, 3])), ("begin", np.array([0])), ("end", np.array([1]))],
)
BRANCH = model(  # of Swin V2, which is normalized, where the stream is not
    ("hidden", "MatMul", ["x", "w"], {}),
    ("norm", "LayerNormalization", ["hidden", "w"], {}),
    ("moved", "Add", ["norm", "bias"], {}),
    ("stream", "Add", ["x", "norm"], {}),
    ("next", "MatMul", ["stream", "w"], {}),
    ("sum", "Add", ["next", "moved"], {}),
    constants=[("bias", np.array([1.0]))],
)


@pytest.mark.parametrize(
    ("graph", "ranges", "kept"),
    [
        (BRANCH, {}, {"stream"}),
        (GATHERED, {}, {"stream", "mean", "half"}),
        (ATTENTION, {}, {"scaled", "masked", "residual"}),
        (ATTENTION, {"mask": 3.4e38}, {"scaled", "masked", "residual"}),
        (ATTENTION, {"hidden": 70000.0}, {"scaled", "masked", "residual", "hidden", "biased"}),
        (PARTS, {}, {"sum"}),
        (SQUARES["Mul"], {}, {"sum", "mean"}),
        (SQUARES["Pow"], {}, {"sum", "mean"}),
        (RESIDUAL, {"sum": 300.0}, set()),
    ],
)
def test_scores_masks_and_sums_before_a_normalization_are_kept(graph, ranges, kept):
    assert nodes_beyond_int8(graph, ranges).keys() == kept


def test_each_node_comes_with_a_reason():
    reasons = nodes_beyond_int8(ATTENTION, {"mask": -MASKED})
    assert reasons["masked"] == "its numbers reach beyond float16, as those of a mask do"
    assert reasons["scaled"] == "it makes the scores of a Softmax"
    assert reasons["residual"] == "it is part of what is normalized later"


BLOCK = """<ir_version: 8, opset_import: ["" : 20]> g (float[N,32,8,8] x, float[32,1,3,3] d, float[8,32,1,1] w,
    float[32,8,1,1] v, float[16,32,1,1] p, float[16,16,1,1] h, float[N,16,1,1] told)
    => (float[N,16] y) <float[1] one = {1.0}, int64[2] sides = {2, 3}>
{
    [depthwise] deep = Conv <group = 32, pads = [1,1,1,1]> (x, d)
    [average] mean = GlobalAveragePool (deep)
    [squeeze] few = Conv (mean, w)
    [gate] open = Sigmoid (few)
    [silu] bent = Mul (few, open)
    [excite] many = Conv (bent, v)
    [flat] row = Squeeze (many, sides)
    [sigmoid] sure = Sigmoid (row)
    [column] wide = Unsqueeze (sure, sides)
    [size] size = Shape (deep)
    [expanded] factor = Expand (wide, size)
    [twice] scaled = Mul (factor, one)
    [excited] image = Mul (deep, scaled)
    [project] flat = Conv (image, p)
    [last] pooled = GlobalAveragePool (flat)
    [head] many_rows = Conv (pooled, h)
    [weighed] other = Mul (many_rows, told)
    [rows] y = Flatten (other)
}"""


def test_tensorrt_alone_leaves_depthwise_convolutions_and_squeezed_branches_in_floats():
    graph = onnx.parser.parse_model(BLOCK)
    weights = [each for each in graph.graph.input if each.name not in ("x", "told")]
    for each in weights:
        shape = [dim.dim_value for dim in each.type.tensor_type.shape.dim]
        graph.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), each.name))
        graph.graph.input.remove(each)
    for runtime, device, kept in (
        ("tensorrt", "cuda", ["depthwise", "average", "squeeze", "excite"]),
        ("onnxruntime", "cuda", []),
        ("openvino", "cpu", []),
    ):
        assert list(nodes_in_floats("int8", graph, {}, dialect_of(runtime, device, "avx512_vnni"), "fp32")) == kept

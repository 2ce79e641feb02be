import onnx
import pytest
from support.errors import error_of

from enginery.graph.shape_inputs import require_no_shape_inputs

IMAGE = "float[batch, 3, 8, 8] image"
REFUSED = {
    "sizes of a Resize": ("int64[4] sizes", 'y = Resize <mode = "nearest"> (image, , , sizes)', "y (Resize)"),
    "a shape that is computed": (
        "int32[4] sizes", "a = Cast <to = 7> (sizes) twice = Add (a, a) y = Expand (image, twice)", "y (Expand)",
    ),
    "a single number": ("int64 count", "y = Expand (image, count)", "y (Expand)"),
}  # fmt: skip
ACCEPTED = {
    "indices": ("int64[batch] rows", "y = Gather (image, rows)"),
    "the shape of an input": ("int64[batch] rows", "shape = Shape (rows) y = Expand (image, shape)"),
    "a row for each sample": ("int64[batch, 4] sizes", "sum = ReduceSum (sizes) y = Expand (image, sum)"),
}


def graph_of(given, body):
    return onnx.parser.parse_graph(f"g ({IMAGE}, {given}) => (float y) {{ {body} }}")


@pytest.mark.parametrize(("given", "body", "where"), REFUSED.values(), ids=REFUSED)
def test_an_input_whose_values_decide_a_shape_is_refused_by_name(given, body, where):
    name = given.split()[1]
    assert error_of(require_no_shape_inputs, graph_of(given, body), "x.onnx") == (
        f"x.onnx: the values of input {name} decide a shape, in node {where}, and an input must have a sample in each "
        "row: export with these values as constants, or with a size that varies, and give it a range in build.profile"
    )


@pytest.mark.parametrize(("given", "body"), ACCEPTED.values(), ids=ACCEPTED)
def test_another_input_of_integers_is_not(given, body):
    require_no_shape_inputs(graph_of(given, body), "x.onnx")

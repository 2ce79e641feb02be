import onnx
import pytest
from support.errors import error_of

from enginewright.core.params.build import Axis, Profile, Range
from enginewright.graph.onnx_file import graph_inputs
from enginewright.graph.read_interface import shape_inputs, values_of

IMAGE = "float[batch, 3, 8, 8] image"
SIZES = {"min": 1, "opt": 2, "max": 4}
HOLDING_SIZES = {
    "sizes of a Resize": ("int64[4] sizes", 'y = Resize <mode = "nearest"> (image, , , sizes)', "y (Resize)"),
    "a shape that is computed": (
        "int32[4] sizes", "a = Cast <to = 7> (sizes) twice = Add (a, a) y = Expand (image, twice)", "y (Expand)",
    ),
    "a single number": ("int64 count", "y = Expand (image, count)", "y (Expand)"),
}  # fmt: skip
HOLDING_ROWS = {
    "indices": ("int64[batch] rows", "y = Gather (image, rows)"),
    "the shape of an input": ("int64[batch] rows", "shape = Shape (rows) y = Expand (image, shape)"),
    "a row for each sample": ("int64[batch, 4] sizes", "sum = ReduceSum (sizes) y = Expand (image, sum)"),
}


def graph_of(given, body):
    return onnx.parser.parse_graph(f"g ({IMAGE}, {given}) => (float y) {{ {body} }}")


def values(graph, **places):
    """Return the axes of the second input of a graph, where each axis has these places in inputs."""
    axes = {axis: Axis(**SIZES, values=each) for axis, each in places.items()}
    tensor = graph_inputs(graph)[1]
    profile = Profile(batch=Range(**SIZES), axes=axes)
    return values_of(tensor, shape_inputs(graph)[tensor.name], profile, "x.onnx")


@pytest.mark.parametrize(("given", "body", "where"), HOLDING_SIZES.values(), ids=HOLDING_SIZES)
def test_an_input_whose_values_decide_a_shape_has_an_axis_for_each(given, body, where):
    graph, name = graph_of(given, body), given.split()[1]
    count = 4 if "[4]" in given else 1
    axes = {f"axis{n}": {name: n} for n in range(count)}
    assert values(graph, **axes) == tuple(axes)
    sentence = error_of(values, graph, **dict(list(axes.items())[1:]))
    assert sentence == (
        f"x.onnx: the values of input {name} decide a shape, in node {where}: give each of its {count} values an axis "
        "with a range, as in build.profile.axes.NAME: {min: 8, opt: 16, max: 32, values: "
        f"{{{name}: PLACE}}}}, and put what it holds into samples.values"
    )


@pytest.mark.parametrize(("given", "body"), HOLDING_ROWS.values(), ids=HOLDING_ROWS)
def test_another_input_of_integers_does_not_hold_sizes(given, body):
    assert not shape_inputs(graph_of(given, body))

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.errors import error_of
from support.tensors import noise, of_each, sizes_of

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Profile, Range
from enginewright.graph.read_interface import interface_of
from enginewright.model.source_model import adopt_graph, settle_sizes

BATCH = Profile(batch=Range(min=1, opt=2, max=8))
BATCHED = of_each({0: "batch"})
IMAGES = of_each({0: "batch", 2: "height", 3: "width"})


def given_graph(*shape, output=("N", 4), hidden=("N", 4)):
    floats = {"input": shape, "scores": output, "hidden": hidden}
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in floats.items()}
    nodes = [helper.make_node("Relu", ["input"], ["hidden"]), helper.make_node("Abs", ["hidden"], ["scores"])]
    graph = helper.make_graph(nodes, "given", [tensors["input"]], [tensors["scores"]], value_info=[tensors["hidden"]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_axes_that_vary_get_the_names_of_the_profile():
    shape = ("N", 3, "H", "W")
    adopted = adopt_graph(
        given_graph(*shape, output=shape, hidden=shape), {"input": noise(2, 3, 8, 8)}, IMAGES, "x.onnx"
    )
    ours = ["batch", 3, "height", "width"]
    assert sizes_of([*adopted.graph.input, *adopted.graph.output, *adopted.graph.value_info]) == {
        "input": ours,
        "scores": ours,
        "hidden": ours,
    }


@pytest.mark.parametrize(
    ("shape", "output", "wanted"),
    [
        ((None, 3, None, None), (None, 4, 7, None), ["", 4, 7, ""]),  # without names, nothing tells which is which
        (("N", 3, "S", "S"), ("N", 4, "S", "S"), ["batch", 4, "", ""]),
        (("N", 3, "H", "W"), ("N", 4, "height", "H//8"), ["batch", 4, "", "H//8"]),
        (("N", 3, "height", "width"), ("N", 4, "height", "H"), ["batch", 4, "height", "H"]),
    ],
    ids=["nameless", "one for both", "ours for another", "ours"],
)
def test_only_sizes_that_are_certainly_those_of_the_images_get_their_names(shape, output, wanted):
    given = given_graph(*shape, output=output, hidden=output)
    graph = adopt_graph(given, {"input": noise(2, 3, 8, 8)}, IMAGES, "x.onnx").graph
    assert sizes_of(graph.input) == {"input": ["batch", 3, "height", "width"]}
    sizes = [size or 0 for size in wanted]  # a size without a name and a number reads as zero
    assert sizes_of([*graph.output, *graph.value_info]) == {"scores": sizes, "hidden": sizes}


def test_an_open_axis_that_the_profile_lacks_gets_its_size_in_the_samples():
    batch = BATCHED
    shape = ("N", "seq", 4)
    graph = adopt_graph(given_graph(*shape, output=shape), {"input": noise(2, 5, 4)}, batch, "x.onnx")
    assert [*sizes_of([*graph.graph.input, *graph.graph.output]).values()] == [["batch", 5, 4]] * 2
    assert [spec.shape for spec in interface_of(graph, BATCH, "x.onnx").outputs] == [("batch", 5, 4)]
    shape = ("N", 3, "H", "W")
    images = adopt_graph(given_graph(*shape, output=("N", 3, "H", "H//2")), {"input": noise(2, 3, 8, 6)}, batch, "x")
    assert sizes_of([*images.graph.input, *images.graph.output]) == {
        "input": ["batch", 3, 8, 6],
        "scores": ["batch", 3, 8, "H//2"],
    }


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [([7, 7], 7), ([7, 8], "anchors"), (None, "anchors")],
    ids=["the same each time", "of the samples", "not run"],
)
def test_a_size_with_a_name_of_the_exporter_is_what_runs_show(sizes, wanted):
    graph = adopt_graph(given_graph("N", 4, output=("N", "anchors")), {"input": noise(2, 4)}, BATCHED, "x.onnx")

    def run(feeds):
        if sizes is None:
            raise EnginewrightError("the batch is fixed")
        return {"scores": noise(2, sizes[int(feeds["call"])])}

    settle_sizes(graph, run, [{"call": np.array(call)} for call in range(2)], BATCH)
    assert sizes_of(graph.graph.output) == {"scores": ["batch", wanted]}


def test_a_name_of_two_sizes_is_removed_from_outputs():
    given = given_graph("N", "N", output=("N", "N"), hidden=("N", "N"))
    graph = adopt_graph(given, {"input": noise(2, 4)}, BATCHED, "x.onnx").graph
    assert sizes_of([*graph.input, *graph.output]) == {"input": ["batch", 4], "scores": [0, 0]}


def test_functions_are_written_out():
    given = given_graph("N", 4)
    body = [helper.make_node("Relu", ["x"], ["positive"]), helper.make_node("Neg", ["positive"], ["y"])]
    ours = helper.make_opsetid("ours", 1)
    given.functions.append(helper.make_function("ours", "Below", ["x"], ["y"], body, given.opset_import))
    given.opset_import.append(ours)
    given.graph.node[0].op_type, given.graph.node[0].domain = "Below", "ours"
    adopted = adopt_graph(given, {"input": noise(2, 4)}, BATCHED, "x.onnx")
    assert [node.op_type for node in adopted.graph.node] == ["Relu", "Neg", "Abs"]
    assert sizes_of(adopted.graph.output) == {"scores": ["batch", 4]}


def test_fixed_sizes_stay_as_they_are():
    shape = (4, 3, 8, 8)
    given = given_graph(*shape, output=shape, hidden=shape)
    before = given.SerializeToString()
    assert adopt_graph(given, {"input": noise(*shape)}, IMAGES, "x.onnx").SerializeToString() == before


@pytest.mark.parametrize(("dtype", "takes_arrays"), [("uint8", False), ("float16", False), ("int64", True)])
def test_another_type_is_refused_and_arrays_are_suggested_only_if_they_can_have_it(dtype, takes_arrays):
    given = given_graph("N", 4, output=("N", 4), hidden=("N", 4))
    given.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert error_of(adopt_graph, given, {"input": noise(2, 4)}, BATCHED, "x.onnx") == (
        f"x.onnx: input input is {dtype}, and the samples give float32: images are always float32, and arrays float32, "
        "int32, int64, bool; export the model with a cast of its own"
        + (", or bring arrays as samples.source" if takes_arrays else "")
    )


def test_inputs_with_other_names_than_the_samples_are_refused():
    for example in ({"image": noise(2, 4)}, {"input": noise(2, 4), "mask": noise(2, 4)}):
        assert error_of(adopt_graph, given_graph("N", 4), example, BATCHED, "data/models/x.onnx") == (
            f"data/models/x.onnx takes input, and the samples give {', '.join(example)}: "
            "use the same names, for images by samples.input"
        )


@pytest.mark.parametrize("shape", [("N", 3, 16, 8), ("N", 3, 8), ("N", 1, "H", "W")], ids=str)
def test_another_shape_is_refused_and_both_are_named(shape):
    assert error_of(adopt_graph, given_graph(*shape), {"input": noise(2, 3, 8, 8)}, IMAGES, "data/models/x.onnx") == (
        f"data/models/x.onnx: input input is ({', '.join(map(str, shape))}), and the samples give (2, 3, 8, 8): "
        "samples.preprocessing, or the arrays, must be as the model takes them"
    )


def test_constants_that_are_listed_as_inputs_need_no_samples():
    given = given_graph("N", 4)
    given.graph.initializer.append(onnx.numpy_helper.from_array(noise(4), "bias"))
    given.graph.input.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, [4]))
    assert adopt_graph(given, {"input": noise(2, 4)}, BATCHED, "x.onnx").graph.input[0].name == "input"

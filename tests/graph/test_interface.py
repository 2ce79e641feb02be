import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.errors import error_of

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Profile, Range
from enginewright.engine.gpu import POISON
from enginewright.graph.onnx_file import fixed_batch, load_graph
from enginewright.graph.read_interface import FLOATS, interface_of, read_interface

PROFILE = Profile(batch=Range(min=1, opt=2, max=4))
SIZED = Profile(batch=Range(min=1, opt=2, max=4), height=Range(min=8, opt=8, max=16))


@pytest.fixture
def written(tmp_path):
    def write(inputs, outputs, nodes=None, constants=()):
        """Save a graph that copies each input to the output of the same place, unless other nodes are given."""
        ends = [
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in tensors]
            for tensors in (inputs, outputs)
        ]
        through = zip(inputs, outputs, strict=False)
        copies = [helper.make_node("Identity", [one[0]], [other[0]]) for one, other in through]
        graph = helper.make_graph(nodes or copies, "graph", *ends, list(constants))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.save(model, tmp_path / "model.onnx")
        return tmp_path / "model.onnx"

    return write


def shapes(specs):
    return {spec.name: (spec.dtype, spec.shape) for spec in specs}


def test_every_input_and_output_is_read_with_its_type_and_the_sizes_that_vary(written):
    path = written(
        [("image", TensorProto.FLOAT, ["N", 3, "height", 8]), ("numbers", TensorProto.INT64, ["N", 2])],
        [("map", TensorProto.FLOAT, ["N", 3, "height", 8])],
    )
    interface = read_interface(path, SIZED)
    assert shapes(interface.inputs) == {
        "image": ("float32", ("batch", 3, "height", 8)),
        "numbers": ("int64", ("batch", 2)),
    }
    assert shapes(interface.outputs) == {"map": ("float32", ("batch", 3, "height", 8))}
    assert interface.sizes({"image": (3, 3, 9, 8), "numbers": (3, 2)}) == {"batch": 3, "height": 9}


def test_constants_that_old_files_list_as_inputs_are_not_inputs(written):
    kernel = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    path = written(
        [("image", TensorProto.FLOAT, ["batch", 3, 8, 8]), ("w", TensorProto.FLOAT, [4, 3, 3, 3])],
        [("map", TensorProto.FLOAT, ["batch", 4, 6, 6])],
        [helper.make_node("Conv", ["image", "w"], ["map"])],
        [kernel],
    )
    assert shapes(read_interface(path, PROFILE).inputs) == {"image": ("float32", ("batch", 3, 8, 8))}
    assert fixed_batch(load_graph(path)) is None


def test_a_size_that_varies_needs_a_range_in_the_profile(written):
    path = written(
        [("image", TensorProto.FLOAT, ["batch", 3, "height", 8])],
        [("map", TensorProto.FLOAT, ["batch", 3, "height", 8])],
    )
    assert error_of(read_interface, path, PROFILE) == (
        f"{path}: input image has a dynamic size 'height' at axis 2: only batch may vary, as build.profile has it"
    )
    assert read_interface(path, SIZED)


def test_a_size_without_a_name_is_refused(written):
    path = written([("image", TensorProto.FLOAT, ["batch", None])], [("map", TensorProto.FLOAT, ["batch", None])])
    with pytest.raises(EnginewrightError, match="input image has a dynamic size 'without a name' at axis 1"):
        read_interface(path, SIZED)


@pytest.mark.parametrize(("in_graph", "described"), [("half", "half"), (None, "?")])
def test_an_output_size_that_follows_from_the_images_keeps_the_graphs_name(written, in_graph, described):
    kernel = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    path = written(
        [("image", TensorProto.FLOAT, ["batch", 3, "height", 8])],
        [("map", TensorProto.FLOAT, ["batch", 4, in_graph, 4])],
        [helper.make_node("Conv", ["image", "w"], ["map"], strides=[2, 2], pads=[1, 1, 1, 1])],
        [kernel],
    )
    (spec,) = read_interface(path, SIZED).outputs
    assert spec.shape == ("batch", 4, described, 4)
    assert spec.fits((2, 4, 9, 4), {"batch": 2, "height": 17})
    for wrong in ((3, 4, 9, 4), (2, 4, 9, 5), (2, 4, -1, 4), (2, 4, 9)):
        assert not spec.fits(wrong, {"batch": 2, "height": 17})


def test_an_unwritten_element_of_every_accepted_type_is_nan():
    """Integers have no NaN, so that an engine that skips an element would go unnoticed: they are refused."""
    for kind in FLOATS:
        assert np.isnan(np.frombuffer(bytes([POISON] * 8), kind)).all()


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL])
def test_an_output_that_is_not_of_floats_is_refused(written, kind):
    path = written(
        [("image", TensorProto.FLOAT, ["batch", 3])],
        [("found", kind, ["batch", 3])],
        [helper.make_node("Cast", ["image"], ["found"], to=kind)],
    )
    with pytest.raises(EnginewrightError, match=r"output found is \w+ and must be one of float32, float16, float64"):
        read_interface(path, PROFILE)


def test_an_output_size_may_follow_from_values(written):
    path = written(
        [("image", TensorProto.FLOAT, ["batch", 3])],
        [("found", TensorProto.FLOAT, ["batch", "some"])],
        [helper.make_node("Compress", ["image", "chosen"], ["found"], axis=1)],
        [numpy_helper.from_array(np.array([True, False, True]), "chosen")],
    )
    assert shapes(read_interface(path, PROFILE).outputs) == {"found": ("float32", ("batch", "some"))}


def test_a_fixed_batch_needs_a_profile_of_this_batch_alone(written):
    path = written([("image", TensorProto.FLOAT, [4, 3])], [("map", TensorProto.FLOAT, [4, 3])])
    only = Profile(batch=Range(min=4, opt=4, max=4))
    assert shapes(read_interface(path, only).inputs) == {"image": ("float32", (4, 3))}
    for other in (PROFILE, Profile(batch=Range(min=2, opt=2, max=2))):
        assert error_of(read_interface, path, other) == (
            f"{path}: the batch of input image is fixed at 4, and build.profile.batch asks for {other.batch}: "
            "export with a dynamic batch, or set all three to 4"
        )


def test_a_batch_that_is_frozen_into_the_graph_is_refused(written):
    path = written([("image", TensorProto.FLOAT, ["batch", 3])], [("map", TensorProto.FLOAT, [2, 3])])
    with pytest.raises(EnginewrightError, match="a batch size is frozen into the graph"):
        read_interface(path, PROFILE)


def test_an_output_that_is_no_tensor_is_refused(tiny_graph, profile):
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    model.graph.node.append(helper.make_node("SequenceConstruct", ["logits"], ["all"], "collect"))
    model.graph.output.append(helper.make_value_info("all", kind))
    assert error_of(interface_of, model, profile, "x.onnx") == "x.onnx: output all is a sequence and no tensor"

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginery.core.errors import EngineryError
from enginery.core.params.build import Profile, Range
from enginery.engine.gpu.cuda import POISON
from enginery.graph.as_written import open_as_written, run_graph
from enginery.graph.check import check_graph
from enginery.graph.interface import FLOATS, interface_of, read_interface
from enginery.graph.onnx_file import count_nodes, fixed_batch, load_graph, save_graph


def logits(*values):
    return {"logits": np.array([values])}


def test_a_graph_is_saved_and_loaded_as_it_was(tiny_graph, tmp_path):
    save_graph(tiny_graph, tmp_path / "model.onnx")
    assert load_graph(tmp_path / "model.onnx") == tiny_graph


def test_a_missing_graph_says_how_to_make_it(tmp_path):
    with pytest.raises(EngineryError, match=r"model\.onnx is missing: run `dvc repro`"):
        load_graph(tmp_path / "model.onnx")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_graph_is_refused(tiny_onnx, tmp_path, share):
    content = tiny_onnx.read_bytes()
    (tmp_path / "model.onnx").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(EngineryError, match=r"model\.onnx is not a valid ONNX file"):
        load_graph(tmp_path / "model.onnx")


def test_an_invalid_graph_is_refused(tiny_graph, tmp_path):
    broken = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    broken.graph.node[0].input[0] = "nothing"
    onnx.save(broken, tmp_path / "model.onnx")
    with pytest.raises(EngineryError, match=r"model\.onnx is not a valid ONNX file"):
        load_graph(tmp_path / "model.onnx")


def test_nodes_are_counted_by_type(tiny_graph):
    assert count_nodes(tiny_graph) == {"Conv": 2, "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1, "Relu": 2}


def test_a_graph_runs_from_memory_as_from_disk(tiny_graph, tiny_onnx, samples):
    feeds = samples.cycled(3)
    from_memory, from_disk = run_graph(open_as_written(tiny_graph), feeds), run_graph(open_as_written(tiny_onnx), feeds)
    assert from_memory.keys() == from_disk.keys() == {"logits"}
    assert np.array_equal(from_memory["logits"], from_disk["logits"])


def test_a_graph_within_the_limit_passes_with_its_errors():
    check = check_graph(logits(3.0, 4.0), logits(3.0, 4.5), 0.2, "test")
    assert (check.samples, check.max_abs_error, check.relative_error) == (1, 0.5, 0.1)


@pytest.mark.parametrize("got", [[3.0, 5.0], [3.0, np.nan], [np.inf, 4.0]])
def test_a_graph_beyond_the_limit_stops_the_pipeline(got):
    with pytest.raises(
        EngineryError, match=r"simplify: wrong: the relative error of logits is .* may be 1e-01 at most"
    ):
        check_graph(logits(3.0, 4.0), logits(*got), 0.1, "simplify: wrong")


def test_of_several_outputs_the_worst_is_checked_and_named():
    wanted = {"scores": np.ones((2, 3)), "map": np.ones((2, 4, 4))}
    close = {"scores": np.full((2, 3), 1.01), "map": np.full((2, 4, 4), 1.05)}
    assert check_graph(wanted, close, 0.1, "test").relative_error == pytest.approx(0.05)
    for broken in (1.5, np.nan):
        with pytest.raises(EngineryError, match="test: the relative error of map is"):
            check_graph(wanted, close | {"map": np.full((2, 4, 4), broken)}, 0.1, "test")


def test_a_graph_whose_output_has_another_shape_stops_the_pipeline():
    with pytest.raises(EngineryError) as caught:
        check_graph({"map": np.ones((2, 4, 1))}, {"map": np.ones((2, 1, 4))}, 9.0, "export: wrong")  # would broadcast
    assert str(caught.value) == "export: wrong: map has shape (2, 1, 4) and should have (2, 4, 1)"


PROFILE = Profile(batch=Range(min=1, opt=2, max=4))
SIZED = Profile(batch=Range(min=1, opt=2, max=4), height=Range(min=8, opt=8, max=16))


@pytest.fixture
def written(tmp_path):
    def write(inputs, outputs, nodes=None, constants=()):
        """Each input goes through unchanged to the output of its place, unless other nodes are given."""
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


def test_every_input_and_output_is_read_with_its_type_and_what_varies(written):
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


def test_constants_are_no_inputs_though_old_files_list_them_as_such(written):
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
    with pytest.raises(EngineryError) as caught:
        read_interface(path, PROFILE)
    assert str(caught.value) == (
        f"{path}: input image has a dynamic size 'height' at axis 2: only batch may vary, as build.profile has it"
    )
    assert read_interface(path, SIZED)


def test_a_size_without_a_name_is_refused(written):
    path = written([("image", TensorProto.FLOAT, ["batch", None])], [("map", TensorProto.FLOAT, ["batch", None])])
    with pytest.raises(EngineryError, match="input image has a dynamic size 'without a name' at axis 1"):
        read_interface(path, SIZED)


@pytest.mark.parametrize(("stated", "told"), [("half", "half"), (None, "?")])
def test_an_output_whose_size_follows_from_the_images_is_described_in_the_graphs_words(written, stated, told):
    kernel = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    path = written(
        [("image", TensorProto.FLOAT, ["batch", 3, "height", 8])],
        [("map", TensorProto.FLOAT, ["batch", 4, stated, 4])],
        [helper.make_node("Conv", ["image", "w"], ["map"], strides=[2, 2], pads=[1, 1, 1, 1])],
        [kernel],
    )
    (spec,) = read_interface(path, SIZED).outputs
    assert spec.shape == ("batch", 4, told, 4)
    assert spec.fits((2, 4, 9, 4), {"batch": 2, "height": 17})
    for wrong in ((3, 4, 9, 4), (2, 4, 9, 5), (2, 4, -1, 4), (2, 4, 9)):
        assert not spec.fits(wrong, {"batch": 2, "height": 17})


def test_in_whatever_an_output_may_be_an_element_left_unwritten_is_nan():
    """Integers have no such value: an engine that skips one of them would go unnoticed, so they are refused."""
    for kind in FLOATS:
        assert np.isnan(np.frombuffer(bytes([POISON] * 8), kind)).all()


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL])
def test_an_output_of_no_floats_is_refused(written, kind):
    path = written(
        [("image", TensorProto.FLOAT, ["batch", 3])],
        [("found", kind, ["batch", 3])],
        [helper.make_node("Cast", ["image"], ["found"], to=kind)],
    )
    with pytest.raises(EngineryError, match=r"output found is \w+ and must be one of float32, float16, float64"):
        read_interface(path, PROFILE)


def test_an_output_varies_only_where_the_images_do(written):
    """What is left are sizes that depend on values."""
    path = written(
        [("image", TensorProto.FLOAT, ["batch", 3])],
        [("found", TensorProto.FLOAT, ["batch", "some"])],
        [helper.make_node("Compress", ["image", "chosen"], ["found"], axis=1)],
        [numpy_helper.from_array(np.array([True, False, True]), "chosen")],
    )
    with pytest.raises(EngineryError, match=r"output found has a dynamic size 'some' at axis 1: only batch may vary"):
        read_interface(path, PROFILE)


def test_a_fixed_batch_needs_a_profile_of_just_it(written):
    path = written([("image", TensorProto.FLOAT, [4, 3])], [("map", TensorProto.FLOAT, [4, 3])])
    only = Profile(batch=Range(min=4, opt=4, max=4))
    assert shapes(read_interface(path, only).inputs) == {"image": ("float32", (4, 3))}
    for other in (PROFILE, Profile(batch=Range(min=2, opt=2, max=2))):
        with pytest.raises(EngineryError) as caught:
            read_interface(path, other)
        assert str(caught.value) == (
            f"{path}: the batch of input image is fixed at 4, and build.profile.batch asks for {other.batch}: "
            "export with a dynamic batch, or set all three to 4"
        )


def test_a_batch_that_is_frozen_into_the_graph_is_refused(written):
    path = written([("image", TensorProto.FLOAT, ["batch", 3])], [("map", TensorProto.FLOAT, [2, 3])])
    with pytest.raises(EngineryError, match="a batch size is frozen into the graph"):
        read_interface(path, PROFILE)


def test_weights_beside_a_file_that_are_cut_off_are_named_with_it(tiny_graph, tmp_path):
    path = tmp_path / "model.onnx"
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    onnx.save(model, path, save_as_external_data=True, location="weights.data", size_threshold=0)
    (tmp_path / "weights.data").write_bytes(b"cut")
    with pytest.raises(
        EngineryError, match=r"model\.onnx is not a valid ONNX file, it may be truncated: External data"
    ):
        load_graph(path)


def test_an_output_that_is_no_tensor_is_refused(tiny_graph, profile):
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    model.graph.node.append(helper.make_node("SequenceConstruct", ["logits"], ["all"], "collect"))
    model.graph.output.append(helper.make_value_info("all", kind))
    with pytest.raises(EngineryError) as caught:
        interface_of(model, profile, "x.onnx")
    assert str(caught.value) == "x.onnx: output all is a sequence and no tensor"

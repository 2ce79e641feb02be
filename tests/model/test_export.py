import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params.build import Profile, Range
from enginery.graph.as_written import open_as_written, run_graph
from enginery.graph.interface import interface_of, read_interface
from enginery.graph.onnx_file import save_graph
from enginery.model.adopt import adopt_graph
from enginery.model.export import export_model, require_names
from enginery.model.source_model import run_model

OPSET = 20
BATCH = Profile(batch=Range(min=1, opt=2, max=8))
SIZED = Profile(
    batch=Range(min=1, opt=2, max=8), height=Range(min=16, opt=32, max=64), width=Range(min=16, opt=32, max=64)
)
IMAGES = {0: "batch", 2: "height", 3: "width"}


def noise(*shape):
    return np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)


def sizes_of(tensors):
    return {
        tensor.name: [size.dim_param or size.dim_value for size in tensor.type.tensor_type.shape.dim]
        for tensor in tensors
    }


def assert_computes_the_same(model, graph, feeds):
    wanted, got = run_model(model, feeds), run_graph(open_as_written(graph), feeds)
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert got[name] == pytest.approx(values, abs=1e-4), name


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.classifier = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 + 4, 5)

    def forward(self, extra, image):
        seen = self.conv(image)
        return {"scores": self.classifier(torch.cat([seen.mean((2, 3)), extra], 1)), "none": None, "map": seen}


def test_several_inputs_and_outputs_keep_their_names_and_the_batch_stays_dynamic(tmp_path):
    model = Pair().eval()
    example = {"image": noise(2, 3, 8, 8), "extra": noise(2, 4)}
    graph = export_model(model, example, {0: "batch"}, BATCH, OPSET)
    assert sizes_of(graph.graph.input) == {"image": ["batch", 3, 8, 8], "extra": ["batch", 4]}
    assert sizes_of(graph.graph.output) == {"scores": ["batch", 5], "map": ["batch", 8, 8, 8]}
    for batch in (1, 7):
        assert_computes_the_same(model, graph, {"image": noise(batch, 3, 8, 8), "extra": noise(batch, 4)})
    save_graph(graph, tmp_path / "model.onnx")
    assert [spec.name for spec in read_interface(tmp_path / "model.onnx", BATCH).inputs] == ["image", "extra"]


def test_an_output_that_is_called_like_an_input_is_refused():
    class Recurrent(nn.Module):
        def forward(self, x, state):
            return {"scores": x + state, "state": state * 2}

    with pytest.raises(EngineryError) as caught:
        export_model(Recurrent(), {"x": noise(2, 4), "state": noise(2, 4)}, {0: "batch"}, BATCH, OPSET)
    assert str(caught.value) == (
        "model.source: output state is called like an input, and a graph has one tensor of a name: "
        "return it under another"
    )


@pytest.mark.parametrize("name", ["input.1", "my input", "self", "class", "0"])
def test_an_input_that_python_has_no_name_for_is_refused(name):
    with pytest.raises(
        EngineryError, match=rf"^samples\.source: an input is called '{name}', which can be no argument"
    ):
        require_names(["image", name])


@pytest.mark.parametrize("names", [["feeds"], ["model", "names"]])
def test_names_that_we_use_ourselves_are_free_to_take(names):
    class Summed(nn.Module):
        def forward(self, *arrays, **named):
            return sum([*arrays, *named.values()]) * 2

    require_names(names)
    graph = export_model(Summed(), {name: noise(2, 4) for name in names}, {0: "batch"}, BATCH, OPSET)
    assert [tensor.name for tensor in graph.graph.input] == names


class Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image):
        return self.conv(image), self.conv(image).mean((2, 3))


def test_height_and_width_stay_dynamic_where_the_profile_has_ranges(tmp_path):
    """And how large a batch or an image is tuned for changes nothing: that is for the engines."""
    model, example = Segments().eval(), {"input": noise(2, 3, 32, 32)}
    graph = export_model(model, example, IMAGES, SIZED, OPSET)
    assert sizes_of(graph.graph.input) == {"input": ["batch", 3, "height", "width"]}
    assert sizes_of(graph.graph.output) == {"output_0": ["batch", 4, "height", "width"], "output_1": ["batch", 4]}
    for shape in ((1, 3, 16, 64), (5, 3, 49, 17)):
        assert_computes_the_same(model, graph, {"input": noise(*shape)})
    save_graph(graph, tmp_path / "model.onnx")
    assert read_interface(tmp_path / "model.onnx", SIZED)
    tuned = SIZED.model_copy(update={"batch": Range(min=1, opt=8, max=8), "width": Range(min=16, opt=64, max=64)})
    assert export_model(model, example, IMAGES, tuned, OPSET) == graph


def test_without_ranges_the_size_is_that_of_the_images_and_a_fixed_batch_is_its_own(tmp_path):
    class Fixed(nn.Module):
        """Reshapes to four samples, whatever it is given."""

        def forward(self, image):
            return image.reshape(4, -1)[:, :12]

    model, example = Fixed().eval(), {"input": noise(4, 3, 8, 8)}
    graph = export_model(model, example, IMAGES, Profile(batch=Range(min=4, opt=4, max=4)), OPSET)
    assert sizes_of([*graph.graph.input, *graph.graph.output]) == {"input": [4, 3, 8, 8], "logits": [4, 12]}
    assert_computes_the_same(model, graph, example)
    save_graph(export_model(model, example, IMAGES, BATCH, OPSET), tmp_path / "model.onnx")
    with pytest.raises(EngineryError, match="a batch size is frozen into the graph"):
        read_interface(tmp_path / "model.onnx", BATCH)


def test_what_is_exported_names_no_place_of_this_machine():
    graph = export_model(nn.Flatten().eval(), {"input": noise(2, 3, 8, 8)}, {0: "batch"}, BATCH, OPSET)
    assert __file__.encode() not in graph.SerializeToString()
    assert b"site-packages" not in graph.SerializeToString()


class Branches(nn.Module):
    def forward(self, image):
        if image.sum() > 0:
            return image * 2
        return image


class Refuses(nn.Module):
    def forward(self, image):
        if torch.compiler.is_exporting():
            raise ValueError("never export me")
        return image


class Untranslated(nn.Module):
    def forward(self, image):
        return torch.linalg.eigvals(image[:, 0]).real


@pytest.mark.parametrize(
    ("model", "reason", "line"),
    [
        (Branches(), "data-dependent", "        if image.sum() > 0:"),
        (Untranslated(), "aten.linalg_eig", "        return torch.linalg.eigvals(image[:, 0]).real"),
        (Refuses(), "never export me", '            raise ValueError("never export me")'),
    ],
)
def test_what_cannot_be_exported_is_told_with_its_operator_and_the_users_line(model, reason, line, capfd):
    with pytest.raises(EngineryError) as caught:
        export_model(model.eval(), {"input": noise(2, 3, 8, 8)}, {0: "batch"}, BATCH, OPSET)
    told = str(caught.value)
    assert told.startswith("the model cannot be exported to ONNX: ")
    assert reason in told
    with open(__file__) as file:
        number = file.read().splitlines().index(line) + 1
    assert told.endswith(f"({__file__}, line {number}, in forward)")
    assert "\n" not in told
    assert capfd.readouterr() == ("", "")  # PyTorch prints all that it has traced so far


def test_float64_is_returned_as_float32_as_everywhere():
    class Exact(nn.Module):
        def forward(self, pixels):
            return {"exact": pixels.double() * 3, "half": pixels.half()}

    graph = export_model(Exact().eval(), {"input": noise(2, 4)}, {0: "batch"}, BATCH, OPSET)
    assert [spec.dtype for spec in interface_of(graph, BATCH, "x").outputs] == ["float32", "float16"]


def test_an_input_that_the_model_ignores_is_named():
    class Ignores(nn.Module):
        def forward(self, pixels, mask=None):
            return pixels * 2

    pixels, mask = noise(2, 4), noise(2, 4)
    with pytest.raises(EngineryError) as caught:
        export_model(Ignores().eval(), {"mask": mask, "pixels": pixels}, {0: "batch"}, BATCH, OPSET)
    assert str(caught.value) == (
        "the model makes no use of its input mask, and PyTorch cannot export it with such: "
        "leave it out of samples.source, and give it a default in forward"
    )
    graph = export_model(Ignores().eval(), {"pixels": pixels}, {0: "batch"}, BATCH, OPSET)
    assert sizes_of(graph.graph.input) == {"pixels": ["batch", 4]}


# The user's own ONNX file.


def given_graph(*shape, output=("N", 4), hidden=("N", 4)):
    floats = {"input": shape, "scores": output, "hidden": hidden}
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in floats.items()}
    nodes = [helper.make_node("Relu", ["input"], ["hidden"]), helper.make_node("Abs", ["hidden"], ["scores"])]
    graph = helper.make_graph(nodes, "given", [tensors["input"]], [tensors["scores"]], value_info=[tensors["hidden"]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def test_what_varies_in_a_given_file_gets_the_names_of_the_profile():
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
        ((None, 3, None, None), (None, 4, 7, None), ["", 4, 7, ""]),  # without names: nothing says which is which
        (("N", 3, "S", "S"), ("N", 4, "S", "S"), ["batch", 4, "", ""]),
        (("N", 3, "H", "W"), ("N", 4, "height", "H//8"), ["batch", 4, "", "H//8"]),
        (("N", 3, "height", "width"), ("N", 4, "height", "H"), ["batch", 4, "height", "H"]),
    ],
    ids=["nameless", "one for both", "ours for another", "ours"],
)
def test_only_what_surely_is_as_large_as_the_images_gets_their_names(shape, output, wanted):
    given = given_graph(*shape, output=output, hidden=output)
    graph = adopt_graph(given, {"input": noise(2, 3, 8, 8)}, IMAGES, "x.onnx").graph
    assert sizes_of(graph.input) == {"input": ["batch", 3, "height", "width"]}
    sizes = [size or 0 for size in wanted]  # without a name and a number it reads as zero
    assert sizes_of([*graph.output, *graph.value_info]) == {"scores": sizes, "hidden": sizes}


def test_what_a_given_file_leaves_open_beside_the_profile_is_as_large_as_in_the_samples():
    batch = {0: "batch"}
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


def test_a_name_that_means_two_sizes_is_no_size_of_an_output():
    given = given_graph("N", "N", output=("N", "N"), hidden=("N", "N"))
    graph = adopt_graph(given, {"input": noise(2, 4)}, {0: "batch"}, "x.onnx").graph
    assert sizes_of([*graph.input, *graph.output]) == {"input": ["batch", 4], "scores": [0, 0]}


def test_sizes_that_a_given_file_fixes_stay_as_they_are():
    shape = (4, 3, 8, 8)
    given = given_graph(*shape, output=shape, hidden=shape)
    before = given.SerializeToString()
    assert adopt_graph(given, {"input": noise(*shape)}, IMAGES, "x.onnx").SerializeToString() == before


@pytest.mark.parametrize(("dtype", "takes_arrays"), [("uint8", False), ("float16", False), ("int64", True)])
def test_arrays_are_asked_for_only_where_they_can_be_fed(dtype, takes_arrays):
    given = given_graph("N", 4, output=("N", 4), hidden=("N", 4))
    given.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    with pytest.raises(EngineryError) as caught:
        adopt_graph(given, {"input": noise(2, 4)}, {0: "batch"}, "x.onnx")
    assert str(caught.value) == (
        f"x.onnx: input input is {dtype}, and the samples give float32: images are always float32, and arrays float32, "
        "int32, int64, bool; export the model with a cast of its own"
        + (", or bring arrays as samples.source" if takes_arrays else "")
    )


def test_a_given_file_must_take_what_the_samples_give():
    for example in ({"image": noise(2, 4)}, {"input": noise(2, 4), "mask": noise(2, 4)}):
        with pytest.raises(EngineryError) as caught:
            adopt_graph(given_graph("N", 4), example, {0: "batch"}, "data/models/x.onnx")
        assert str(caught.value) == (
            f"data/models/x.onnx takes input, and the samples give {', '.join(example)}: "
            "name them alike, images by samples.input"
        )


def test_a_given_file_of_other_numbers_is_told_with_both():
    given = given_graph("N", 4)
    given.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(EngineryError, match=r"x\.onnx: input input is float16, and the samples give float32: images"):
        adopt_graph(given, {"input": noise(2, 4)}, {0: "batch"}, "x.onnx")


def test_a_model_that_no_onnx_file_holds_is_refused_before_it_is_traced(profile):
    large = nn.Linear(30_000, 20_000, device="meta")  # weights of 2.4 GB that nobody has
    with pytest.raises(EngineryError, match=r"its weights take 2\.4 GB, and an ONNX file holds 2\.1 at most"):
        export_model(large, {"input": noise(2, 4)}, {0: "batch"}, profile, OPSET)


@pytest.mark.parametrize("shape", [("N", 3, 16, 8), ("N", 3, 8), ("N", 1, "H", "W")], ids=str)
def test_a_given_file_of_another_size_is_told_with_both(shape):
    with pytest.raises(EngineryError) as caught:
        adopt_graph(given_graph(*shape), {"input": noise(2, 3, 8, 8)}, IMAGES, "data/models/x.onnx")
    assert str(caught.value) == (
        f"data/models/x.onnx: input input is ({', '.join(map(str, shape))}), and the samples give (2, 3, 8, 8): "
        "samples.preprocessing, or the arrays, must be as the model takes them"
    )


def test_constants_of_a_given_file_are_not_asked_of_the_samples():
    given = given_graph("N", 4)
    given.graph.initializer.append(onnx.numpy_helper.from_array(noise(4), "bias"))
    given.graph.input.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, [4]))
    assert adopt_graph(given, {"input": noise(2, 4)}, {0: "batch"}, "x.onnx").graph.input[0].name == "input"

import numpy as np
import pytest
import torch
from support.errors import error_of
from support.tensors import noise, of_each, sizes_of
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Axis, Profile, Range
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.onnx_file import save_graph
from enginewright.graph.read_interface import interface_of, read_interface
from enginewright.model.export import export_model, require_names
from enginewright.model.source_model import run_model

OPSET = 20
BATCH = Profile(batch=Range(min=1, opt=2, max=8))
SIZED = Profile(
    batch=Range(min=1, opt=2, max=8), height=Range(min=16, opt=32, max=64), width=Range(min=16, opt=32, max=64)
)
BATCHED = of_each({0: "batch"})
IMAGES = of_each({0: "batch", 2: "height", 3: "width"})


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
    graph = export_model(model, example, BATCHED, BATCH, OPSET)
    assert sizes_of(graph.graph.input) == {"image": ["batch", 3, 8, 8], "extra": ["batch", 4]}
    assert sizes_of(graph.graph.output) == {"scores": ["batch", 5], "map": ["batch", 8, 8, 8]}
    for batch in (1, 7):
        assert_computes_the_same(model, graph, {"image": noise(batch, 3, 8, 8), "extra": noise(batch, 4)})
    save_graph(graph, tmp_path / "model.onnx")
    assert [spec.name for spec in read_interface(tmp_path / "model.onnx", BATCH).inputs] == ["image", "extra"]


class Counts(nn.Module):
    """Asks for the length of a tensor, as RT-DETR does."""

    def forward(self, input):
        return {"input twice": torch.ones(len(input), 1) + input.flatten(1) + len([1, 2])}


def test_the_length_of_a_tensor_does_not_fix_the_batch():
    graph = export_model(Counts().eval(), {"input": noise(2, 3)}, BATCHED, BATCH, OPSET)
    assert sizes_of(graph.graph.output) == {"input twice": ["batch", 3]}
    assert_computes_the_same(Counts(), graph, {"input": noise(5, 3)})
    assert "len" not in globals()


@pytest.mark.parametrize(
    "bag",
    [
        nn.EmbeddingBag(9, 4),
        nn.EmbeddingBag(9, 4, mode="sum", padding_idx=-9),
        nn.EmbeddingBag(9, 4, mode="mean", padding_idx=0),
    ],
)
def test_bags_of_embeddings_become_sums_without_a_loop(bag):
    ids = np.array([[0, 0, 0], [1, 8, 3], [0, 2, 2], [7, 0, 5]])
    graph = export_model(bag.eval(), {"ids": ids[:2]}, BATCHED, BATCH, OPSET)
    assert not {"Loop", "SequenceEmpty"} & {node.op_type for node in graph.graph.node}
    assert_computes_the_same(bag, graph, {"ids": ids})


class Masked(nn.Module):
    """Looks values up by row, upon which PyTorch guards the batch, as masks of text do."""

    def forward(self, tokens, mask):
        rows = torch.arange(tokens.shape[0])[:, None]
        return tokens * mask[rows, torch.arange(4)[None]]


class Named(nn.Module):
    """Calls its outputs what the exporter calls inner tensors."""

    def forward(self, tokens, mask):
        product = tokens * mask
        return {"relu": product.relu().sum(1), "mul": product, "sum_1": (product.relu() * 2).sum(1)}


@pytest.mark.parametrize("model", [Masked(), Named()])
def test_text_and_its_mask_are_exported_under_any_names(model):
    feeds = {"tokens": noise(2, 4), "mask": noise(2, 4)}
    graph = export_model(model.eval(), feeds, BATCHED, BATCH, OPSET)
    assert_computes_the_same(model, graph, {name: noise(3, 4) for name in feeds})


def test_attention_with_a_learned_mask_and_a_pooling_of_channels_that_come_last():
    """T5, which takes a view of the attention, has the one, and ConvNeXt the other."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask, self.pool = nn.Embedding(4, 2), nn.AdaptiveAvgPool2d(1)

        def forward(self, x):
            heads = x.unflatten(2, (2, 4)).transpose(1, 2)
            learned = self.mask(torch.arange(4)[None] + 0 * torch.arange(4)[:, None]).permute(2, 0, 1)[None]
            found = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=learned)
            return self.pool(found.transpose(1, 2).contiguous().view(-1, 4, 2, 4).permute(0, 3, 1, 2)).flatten(1)

    model, feeds = Network().eval(), {"x": noise(2, 4, 8)}
    graph = export_model(model, feeds, BATCHED, BATCH, OPSET)
    assert_computes_the_same(model, graph, {"x": noise(3, 4, 8)})
    assert "ReduceMean" in {node.op_type for node in graph.graph.node}
    assert "Range" not in {node.op_type for node in graph.graph.node}


def test_an_output_with_the_name_of_an_input_is_refused():
    class Recurrent(nn.Module):
        def forward(self, x, state):
            return {"scores": x + state, "state": state * 2}

    assert error_of(export_model, Recurrent(), {"x": noise(2, 4), "state": noise(2, 4)}, BATCHED, BATCH, OPSET) == (
        "model.source: output state has the name of an input, and names in a graph are unique: return it under another"
    )


@pytest.mark.parametrize("name", ["input.1", "my input", "self", "class", "0"])
def test_an_input_whose_name_is_no_python_identifier_is_refused(name):
    with pytest.raises(
        EnginewrightError, match=rf"^samples\.source: an input is called '{name}', which can be no argument"
    ):
        require_names(["image", name])


@pytest.mark.parametrize("names", [["arrays"], ["model", "names"]])
def test_inputs_may_have_the_names_that_export_uses_itself(names):
    class Summed(nn.Module):
        def forward(self, *arrays, **named):
            return sum([*arrays, *named.values()]) * 2

    require_names(names)
    graph = export_model(Summed(), {name: noise(2, 4) for name in names}, BATCHED, BATCH, OPSET)
    assert [tensor.name for tensor in graph.graph.input] == names


class Segments(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, image):
        return self.conv(image), self.conv(image).mean((2, 3))


def test_height_and_width_stay_dynamic_where_the_profile_has_ranges(tmp_path):
    """The sizes that engines are tuned for change nothing."""
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


def test_axes_of_the_profile_stay_dynamic_under_their_names(tmp_path):
    class Heard(nn.Module):
        def forward(self, sound, mask):
            return {"heard": (sound * mask[..., None]).sum(1), "all": sound.mean((1, 2))[:, None]}

    axes = {"frames": Axis(min=4, opt=8, max=64), "bins": Axis(min=2, opt=8, max=16)}
    profile = Profile(batch=Range(min=1, opt=2, max=8), axes=axes)
    example = {"sound": noise(2, 8, 8), "mask": noise(2, 8)}
    places = {"sound": {0: "batch", 1: "frames", 2: "bins"}, "mask": {0: "batch", 1: "frames"}}
    graph = export_model(Heard().eval(), example, places, profile, OPSET)
    assert sizes_of(graph.graph.input) == {"sound": ["batch", "frames", "bins"], "mask": ["batch", "frames"]}
    assert_computes_the_same(Heard().eval(), graph, {"sound": noise(5, 64, 2), "mask": noise(5, 64)})
    save_graph(graph, tmp_path / "model.onnx")
    (heard, _) = read_interface(tmp_path / "model.onnx", profile).outputs
    assert heard.shape == ("batch", "bins")


def test_without_ranges_sizes_are_fixed_to_those_of_the_samples(tmp_path):
    class Fixed(nn.Module):
        """Reshapes any batch to four samples."""

        def forward(self, image):
            return image.reshape(4, -1)[:, :12]

    model, example = Fixed().eval(), {"input": noise(4, 3, 8, 8)}
    graph = export_model(model, example, IMAGES, Profile(batch=Range(min=4, opt=4, max=4)), OPSET)
    assert sizes_of([*graph.graph.input, *graph.graph.output]) == {"input": [4, 3, 8, 8], "logits": [4, 12]}
    assert_computes_the_same(model, graph, example)
    save_graph(export_model(model, example, IMAGES, BATCH, OPSET), tmp_path / "model.onnx")
    with pytest.raises(EnginewrightError, match="a batch size is frozen into the graph"):
        read_interface(tmp_path / "model.onnx", BATCH)


def test_an_exported_graph_holds_no_paths_of_this_machine():
    graph = export_model(nn.Flatten().eval(), {"input": noise(2, 3, 8, 8)}, BATCHED, BATCH, OPSET)
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
def test_a_failed_export_is_reported_with_its_operator_and_the_users_line(model, reason, line, capfd):
    told = error_of(export_model, model.eval(), {"input": noise(2, 3, 8, 8)}, BATCHED, BATCH, OPSET)
    assert told.startswith("the model cannot be exported to ONNX: ")
    assert reason in told
    with open(__file__) as file:
        number = file.read().splitlines().index(line) + 1
    assert told.endswith(f"({__file__}, line {number}, in forward)")
    assert "\n" not in told
    assert capfd.readouterr() == ("", "")  # PyTorch prints everything that it has traced so far


def test_a_float64_output_becomes_float32():
    class Exact(nn.Module):
        def forward(self, pixels):
            return {"exact": pixels.double() * 3, "half": pixels.half()}

    graph = export_model(Exact().eval(), {"input": noise(2, 4)}, BATCHED, BATCH, OPSET)
    assert [spec.dtype for spec in interface_of(graph, BATCH, "x").outputs] == ["float32", "float16"]


def test_an_input_that_the_model_ignores_is_named():
    class Ignores(nn.Module):
        def forward(self, pixels, mask=None):
            return pixels * 2

    pixels, mask = noise(2, 4), noise(2, 4)
    assert error_of(export_model, Ignores().eval(), {"mask": mask, "pixels": pixels}, BATCHED, BATCH, OPSET) == (
        "the model does not use its input mask, and compilers differ in whether they keep it: "
        "leave it out of samples.source or samples.text.inputs, and give it a default in forward"
    )
    graph = export_model(Ignores().eval(), {"pixels": pixels}, BATCHED, BATCH, OPSET)
    assert sizes_of(graph.graph.input) == {"pixels": ["batch", 4]}


def test_a_size_that_the_code_fixes_is_named():
    class Steps(nn.Module):
        def forward(self, sound):
            return sum(sound[:, place : place + 1] for place in range(int(sound.shape[1])))

    profile = BATCH.model_copy(update={"axes": {"samples": Axis(min=4, opt=8, max=16)}})
    told = error_of(
        export_model, Steps().eval(), {"sound": noise(2, 8)}, of_each({0: "batch", 1: "samples"}), profile, OPSET
    )
    assert told.startswith(
        "the model's code fixes samples at 8, as a loop over it or an int() of it does, and build.prof"
    )

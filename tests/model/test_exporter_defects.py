"""Each defect that enginewright/model/exporter_defects.py works around is still there. Where a test fails with a newer
PyTorch, its workaround can go."""

import re

import pytest
import torch
from torch import nn

from enginewright.model.exporter_defects import attention_in_parts, quiet_exporter

BATCH = {0: torch.export.Dim("batch", min=1)}


def exported(model, *arrays, outputs=("out",), **named):
    """Export as PyTorch does it by itself."""
    shapes = {"named": dict.fromkeys(named, BATCH)} if named else {"arrays": (BATCH,) * len(arrays)}
    with quiet_exporter():
        return torch.onnx.export(
            model.eval(), arrays, kwargs=named or None, dynamic_shapes=shapes, output_names=list(outputs), dynamo=True
        ).model


class Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arrays, **named):
        return self.function(*arrays, **named)


def test_inputs_by_name_have_guards_that_cannot_be_read():
    def masked(tokens, mask):
        rows = torch.arange(tokens.shape[0])[:, None]
        return tokens * mask[rows, torch.arange(4)[None]]

    exported(Module(masked), torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        exported(Module(masked), tokens=torch.ones(2, 4), mask=torch.ones(2, 4))
    assert "name 'L' is not defined" in str(caught.value.__cause__)


def test_a_failure_is_printed_with_all_that_was_traced(capfd):
    model = Module(lambda image: image if image.sum() > 0 else -image).eval()
    with pytest.raises(torch.onnx.errors.OnnxExporterError):
        torch.onnx.export(model, (torch.ones(2),), dynamo=True)
    assert "".join(capfd.readouterr())


def test_the_length_of_a_tensor_fixes_it():
    (given,) = exported(Module(lambda given: torch.ones(len(given), 1) + given), torch.ones(2, 3)).graph.inputs
    assert list(given.shape) == [2, 3]


def test_bags_of_embeddings_become_a_loop():
    bag = nn.EmbeddingBag(9, 4)
    graph = exported(Module(bag), torch.tensor([[0, 1, 2], [3, 4, 5]])).graph
    assert {"Loop", "SequenceEmpty"} <= {node.op_type for node in graph}


def test_inner_tensors_take_the_names_of_outputs():
    graph = exported(Module(lambda given: given.relu().sum(1)), torch.ones(2, 4), outputs=["relu"]).graph
    assert [output.name for node in graph for output in node.outputs].count("relu") == 2


def test_a_graph_holds_the_paths_of_this_machine():
    graph = exported(Module(torch.flatten), torch.ones(2, 4)).graph
    assert any(re.search(r"test_exporter_defects\.py|site-packages", str(node.metadata_props)) for node in graph)


def test_a_pooling_of_whole_images_whose_channels_come_last_ends_in_a_gather():
    model = Module(lambda image: nn.functional.adaptive_avg_pool2d(image.permute(0, 3, 1, 2), 1))
    assert "Gather" in {node.op_type for node in exported(model, torch.ones(2, 4, 4, 3)).graph}


def test_attention_with_a_learned_mask_has_another_layout_where_it_may_be_trained():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = nn.Embedding(4, 2)

        def forward(self, given):
            heads = given.unflatten(2, (2, 4)).transpose(1, 2)
            learned = self.mask(torch.arange(4)[None] + 0 * torch.arange(4)[:, None]).permute(2, 0, 1)[None]
            found = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=learned)
            return found.transpose(1, 2).contiguous().view(given.shape[0], -1, 8)

    with pytest.raises(torch.onnx.errors.OnnxExporterError) as caught:
        exported(Module(Attention()), torch.ones(2, 4, 8))
    assert "Cannot view a tensor" in str(caught.value.__cause__)
    exported(Module(Attention().requires_grad_(False)), torch.ones(2, 4, 8))
    attention_in_parts(Module(Attention()).eval(), (torch.ones(2, 4, 8),), {"arrays": (BATCH,)})

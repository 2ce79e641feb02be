"""Models that were quantized in PyTorch: each kind of layer that rounds becomes Q/DQ nodes with its scales."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from support.small_project import TINY, lay_over, run_pipeline, search_nothing, small_project
from support.tensors import noise, of_each

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Profile, Range
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.onnx_file import count_nodes
from enginewright.model.export import export_model
from enginewright.model.source_model import run_model
from enginewright.precision.given import types_of_rounding

# The quantizers' own.
pytestmark = pytest.mark.filterwarnings(*(f"ignore::{kind}Warning" for kind in ("Future", "Deprecation", "User")))
BATCH = Profile(batch=Range(min=1, opt=2, max=8))
MODULE = '''
import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # its operators

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.more, self.last = nn.Conv2d(16, 32, 3, padding=1), nn.Linear(32, 10)

    def forward(self, input):
        return self.last(torch.relu(self.more(self.body(input))).mean((2, 3)))

def network(kind):
    torch.manual_seed(0)
    model, images = Network(), torch.randn(16, 3, 8, 8)
    return globals()[kind](model, images)

def modelopt(model, images, config="INT8_DEFAULT_CFG"):
    import modelopt.torch.quantization as mtq
    return mtq.quantize(model.eval(), getattr(mtq, config), lambda each: each(images))

def smooth(model, images):
    return modelopt(model, images, "INT8_SMOOTHQUANT_CFG")

def fp8(model, images):
    return modelopt(model, images, "FP8_DEFAULT_CFG")

def int4(model, images):
    return modelopt(model, images, "INT4_BLOCKWISE_WEIGHT_ONLY_CFG")

def torch_ao(model, images):
    from torch.ao.quantization import QConfigMapping, disable_observer, get_default_qat_qconfig
    from torch.ao.quantization.quantize_fx import prepare_qat_fx
    made = prepare_qat_fx(model.train(), QConfigMapping().set_global(get_default_qat_qconfig("fbgemm")), (images,))
    made(images)
    return made.apply(disable_observer)

def pt2e(model, images):
    """Round an activation with the operators that torchao's pt2e leaves."""
    q = torch.ops.quantized_decomposed
    def rounded(_, inputs):
        whole = q.quantize_per_tensor(inputs[0], 0.02, 128, 0, 255, torch.uint8)
        return q.dequantize_per_tensor(whole, 0.02, 128, 0, 255, torch.uint8)
    model.more.register_forward_pre_hook(rounded)
    return model
'''


@pytest.fixture
def network(tmp_path, monkeypatch):
    Path(tmp_path, "rounding_nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rounding_nets", raising=False)
    return importlib.import_module("rounding_nets").network


def exported(model):
    return export_model(model.eval(), {"input": noise(2, 3, 8, 8)}, of_each({0: "batch"}), BATCH, 20)


@pytest.mark.parametrize(
    ("kind", "types", "pairs", "error"),
    [
        ("modelopt", {"INT8"}, 7, 1e-5),
        ("smooth", {"INT8"}, 7, 1e-5),
        ("fp8", {"FLOAT8E4M3FN"}, 7, 1e-5),
        ("torch_ao", {"UINT8", "INT8"}, 10, 0.02),  # BatchNorm in the weights moves some by a step
        ("pt2e", {"UINT8"}, 1, 1e-5),
    ],
)
def test_what_rounds_becomes_nodes_with_the_same_scales(network, kind, types, pairs, error):
    model, feeds = network(kind), {"input": noise(5, 3, 8, 8)}
    known = run_model(model.eval(), feeds)["logits"]
    graph = exported(model)
    assert types_of_rounding(graph) == types
    assert count_nodes(graph)["QuantizeLinear"] == count_nodes(graph)["DequantizeLinear"] == pairs
    got = run_graph(open_as_written(graph), feeds)["logits"]
    assert np.linalg.norm(got - known) < error * np.linalg.norm(known)


def test_blocks_of_four_bits_are_refused(network):
    sentence = "^model.source: body.0.weight_quantizer does not round to int8 or fp8 by a calibrated range of a .*"
    with pytest.raises(EnginewrightError, match=sentence):
        exported(network("int4"))


GIVEN = """
runtime: openvino
task: embedding
samples: {preprocessing: {resize: 8, crop: 8}}
model: {source: "rounding_nets:network", arguments: {kind: torch_ao}}
weights: {source: given, training: {size: 8}}
precisions: {int8: {from: given, rescue: none}}
search: {}
"""


def test_the_pipeline_takes_its_scales(tmp_path, monkeypatch, capsys):
    small_project(tmp_path, monkeypatch, "int8")
    Path("rounding_nets.py").write_text(MODULE)
    search_nothing()
    lay_over(GIVEN, TINY)
    record, _ = run_pipeline(monkeypatch)
    assert "MIND: the model is quantized already" in capsys.readouterr().out
    assert record.executed == {"int8": 3}

"""A model that is quantized already, on the simulated GPU."""

from pathlib import Path

import pytest
from support.builds import building_here
from support.quantized import quantize_with_onnxruntime
from support.small_project import (
    PER_PRECISION,
    STAGES,
    TINY,
    lay_over,
    run_pipeline,
    run_stages,
    search_nothing,
    small_project,
)
from support.tensors import noise

from enginewright.engine.record import EngineRecord

GIVEN = """
runtime: tensorrt
task: embedding
samples: {preprocessing: {resize: 8, crop: 8}}
weights: {source: given, training: {size: 8}}
precisions: {int8: {from: given, rescue: none}}
"""
OF_PYTORCH = """
model: {source: "rounding:network"}
"""
OF_A_FILE = """
model: {source: data/models/tiny.onnx}
benchmark: {baselines: [onnxruntime]}
"""
NETWORK = """
import modelopt.torch.quantization as mtq
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(32, 10)).eval()
    return mtq.quantize(model, mtq.INT8_DEFAULT_CFG, lambda each: each(torch.randn(16, 3, 8, 8)))
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    small_project(tmp_path, monkeypatch, "int8")
    search_nothing()
    with building_here():
        yield


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_model_of_modelopt_comes_to_the_gate(project, monkeypatch, capsys):
    Path("rounding.py").write_text(NETWORK)
    lay_over(GIVEN + OF_PYTORCH, TINY)
    record, _ = run_pipeline(monkeypatch)
    assert (record.target.runtime, record.executed["int8"]) == ("tensorrt", 3)
    assert "MIND: the model is quantized already" in capsys.readouterr().out


def quantized_file(tiny_onnx, kind):
    Path("data/models").mkdir(exist_ok=True)
    quantize_with_onnxruntime(tiny_onnx, "data/models/tiny.onnx", {"input": noise(8, 3, 8, 8)}, kind)
    lay_over(GIVEN + OF_A_FILE, TINY)


def test_a_file_of_onnxruntime_is_built_without_its_biases_of_32_bits(project, tiny_onnx, monkeypatch):
    quantized_file(tiny_onnx, "QInt8")
    run_stages(monkeypatch, *STAGES, *PER_PRECISION[: PER_PRECISION.index("benchmark")])
    assert EngineRecord.read(Path("artifacts/engines/int8/engine.json")).executed["int8"] == 3


def test_zero_points_are_refused(project, tiny_onnx, monkeypatch):
    quantized_file(tiny_onnx, "QUInt8")
    sentence = (
        "^convert: precisions.int8.from: TensorRT takes no zero points and no unsigned bytes, which the model has at"
    )
    with pytest.raises(SystemExit, match=sentence):
        run_stages(monkeypatch, *STAGES, "convert")

"""The stage convert: the calibration must belong to the graph, and cover it."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.quantized import KEEP_NOTHING, quantized_inputs

from enginery.core.errors import EngineryError
from enginery.core.params.calibration import CalibrationParams
from enginery.quantization.calibration.cache import write_cache
from enginery.quantization.calibration.provenance import provided_provenance
from enginery.quantization.quantize import quantize
from stages.convert import checked_ranges


def test_a_cache_that_lacks_a_tensor_is_refused(tiny_onnx, samples, tmp_path):
    cache = tmp_path / "calibration.cache"
    some = {"input": 2.5, "relu": 7.3, "relu_2": 4.0, "pooled": 3.1}
    write_cache(some, cache)
    params = CalibrationParams(method="max", percentile=100, bins=2048, batch=8, file="data/given.cache")
    provided_provenance(params, cache, some).write(tmp_path / "calibration.json")
    with pytest.raises(EngineryError, match=r"no range for 1 of the 5 tensors that are quantized: features\."):
        checked_ranges("int8", tiny_onnx, tmp_path, samples, KEEP_NOTHING)


def test_a_graph_that_accepts_only_some_sizes_is_quantized_at_that_of_the_samples(samples, tmp_path):
    """A U-Net's halves join only at a size that its steps divide: here 8, and not 224."""
    rng = np.random.default_rng(0)
    weights = {"w": (16, 3, 3, 3), "u": (16, 16, 3, 3), "v": (16, 32, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["seen"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("AveragePool", ["seen"], ["small"], "pool", kernel_shape=[3, 3], strides=[5, 5]),
        helper.make_node("ConvTranspose", ["small", "u"], ["large"], "up", strides=[5, 5]),
        helper.make_node("Concat", ["seen", "large"], ["both"], "concat", axis=1),
        helper.make_node("Conv", ["both", "v"], ["map"], "head"),
    ]
    graph = helper.make_graph(
        nodes,
        "u",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("map", TensorProto.FLOAT, ["batch", 16, "height", "width"])],
        [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()],
    )
    path, ranges = tmp_path / "model.onnx", dict.fromkeys(["input", "seen", "small", "large", "both"], 4.0)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    write_cache(ranges, tmp_path / "calibration.cache")
    params = CalibrationParams(method="max", percentile=100, bins=2048, batch=8, file="data/given.cache")
    provided_provenance(params, tmp_path / "calibration.cache", ranges).write(tmp_path / "calibration.json")
    amax = checked_ranges("int8", path, tmp_path, samples, KEEP_NOTHING)
    quantized = quantize(path, "int8", amax, KEEP_NOTHING, "fp32", samples.sizes)
    assert quantized_inputs(quantized)["conv"] == ["input", "w"]

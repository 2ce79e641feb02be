"""A graph of which a part is in int8 and a part in another precision computes what the exact graph does."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support.quantized import KEEP_NOTHING

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import CalibrationParams
from enginewright.graph.as_written import run_as_written
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.calibration.cache import provided_provenance, write_cache
from enginewright.precision.calibration.calibrate import measure
from enginewright.precision.dialect import dialect_of
from enginewright.precision.in_dialect import Ingredients, quantize_beside, quantize_in_dialect, types_to_mix

PARAMS = CalibrationParams(method="max", percentile=100, bins=2048, batch=8, file="data/given.cache")
CPU = dialect_of("openvino", "cpu", "avx512_vnni")
TENSORRT = dialect_of("tensorrt", "cuda", "9.0")
TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
PRODUCTS = {"conv1", "conv2", "classifier"}
PART = ["conv2", "relu2"]
MIXES = [
    *((CPU, {precision: PART}) for precision in TYPES),
    (CPU, {"bf16": PART, "fp32": ["classifier"]}),
    (CPU, {"fp32": PART, "fp16": ["pool", "flatten", "classifier"]}),
    (TENSORRT, {"fp16": PART}),
]


@pytest.fixture
def calibrated(tiny_onnx, samples, tmp_path):
    found = measure(load_graph(tiny_onnx), samples.batches(4), bins=2048)
    amax = {name: each.amax for name, each in found.items()}
    write_cache(amax, tmp_path / "calibration.cache")
    return provided_provenance(PARAMS, tmp_path / "calibration.cache", amax)


@pytest.mark.parametrize(("dialect", "floating"), MIXES, ids=str)
def test_the_nodes_of_a_part_are_in_its_type_and_the_others_in_bytes(
    dialect, floating, tiny_onnx, samples, calibrated, tmp_path
):
    keep = KEEP_NOTHING.model_copy(update={"rest": "auto"})
    given = Ingredients(tiny_onnx, calibrated, samples.cycled(1), dialect, keep, rounded=rounded_otherwise(tiny_onnx))
    made, _ = quantize_beside(floating, given)
    own, _ = quantize_in_dialect("int8", given)
    nearest, _ = quantize_in_dialect("int8", given._replace(rounded={}))
    assert weights_of("conv1", made) == weights_of("conv1", own) != weights_of("conv1", nearest)
    rounded = {node.output[0] for node in made.graph.node if node.op_type == "DequantizeLinear"}
    in_bytes = {node.name for node in made.graph.node if rounded.intersection(node.input)}
    in_floats = {name: TYPES[precision] for precision, names in floating.items() for name in names}
    assert in_bytes & PRODUCTS == PRODUCTS - in_floats.keys()
    typed = onnx.shape_inference.infer_shapes(made).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*typed.value_info, *typed.output)}
    made_in = {node.name: types[node.output[0]] for node in typed.node if node.name in in_floats}
    assert made_in == in_floats
    save_graph(made, tmp_path / "mixed.onnx")
    feeds = samples.cycled(4)
    exact, found = (run_as_written(path)(feeds)["logits"] for path in (tiny_onnx, tmp_path / "mixed.onnx"))
    assert 1e-5 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.05


def rounded_otherwise(path):
    """Return bytes for the weights of a convolution that no rounding to the nearest gives."""
    graph = load_graph(path).graph
    (name,) = (node.input[1] for node in graph.node if node.name == "conv1")
    (weights,) = (numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == name)
    axes = tuple(range(1, weights.ndim))
    nearest = np.rint(weights / np.abs(weights).max(axes, keepdims=True) * 127)
    return {name: (nearest - np.sign(nearest)).astype(np.int8)}


def weights_of(name, model):
    """Return the bytes that a node's weights are made of."""
    makers = {output: node for node in model.graph.node for output in node.output}
    constants = {tensor.name: tensor.raw_data for tensor in model.graph.initializer}
    (tensor,) = (node.input[1] for node in model.graph.node if node.name == name)
    while tensor not in constants:
        tensor = makers[tensor].input[0]
    return constants[tensor]


def test_fp32_takes_part_where_the_compilers_int8_has_it_and_what_it_cannot_have_is_refused():
    keep = KEEP_NOTHING.model_copy(update={"rest": "auto"})
    for floating, dialect, types in (
        ("bf16", CPU, ("int8", "bf16", "fp32")),
        ("fp16", CPU, ("int8", "fp16", "fp32")),
        ("fp32", CPU, ("int8", "fp32")),
        ("fp16", TENSORRT, ("int8", "fp16")),
    ):
        assert types_to_mix(floating, keep, dialect) == types
    for floating in ("bf16", "fp32"):
        message = rf"^mix\.best\.floating: here int8 can be mixed with fp16 alone, not with {floating}$"
        with pytest.raises(EnginewrightError, match=message):
            types_to_mix(floating, keep, TENSORRT)

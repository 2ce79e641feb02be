import numpy as np
import onnx_ir as ir
import pytest
from support.pass_checks import BODIES, all_nodes, apply_pass, model_of_text, model_with_body, round_trip

from enginewright.graph.passes.for_one_compiler import drop_idle_strides

WEIGHTS = {"w": np.random.default_rng(0).normal(size=(4, 3, 3, 2)).astype(np.float32)}


def convolution(size, settings):
    conv = f"Conv <{settings}> (input, w)"
    return model_of_text(f"g (float[batch, 3, {size}] input) => (float[] y) {{ y = {conv} }}", WEIGHTS)


@pytest.mark.parametrize(
    ("size", "settings", "strides", "pads"),
    [
        ("3, 2", "strides = [3, 2], pads = [0, 0, 0, 0]", (1, 1), (0, 0, 0, 0)),  # as SegFormer's keys and values
        ("2, 2", "strides = [2, 2], pads = [1, 0, 1, 1]", (1, 1), (1, 0, 0, 0)),
        ("9, 2", "strides = [2, 2], pads = [0, 0, 0, 0]", (2, 1), (0, 0, 0, 0)),
        ("5, 3", "strides = [2, 2], pads = [0, 0, 0, 0], dilations = [2, 2]", (1, 1), (0, 0, 0, 0)),
    ],
)
def test_a_stride_of_a_single_place_becomes_one(size, settings, strides, pads):
    (conv,) = all_nodes(apply_pass(drop_idle_strides, convolution(size, settings)))
    found = {name: attribute.value for name, attribute in conv.attributes.items()}
    assert (tuple(found["strides"]), tuple(found["pads"])) == (strides, pads)


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        ("9, 8", "strides = [2, 2], pads = [0, 0, 0, 0]"),
        ("4, 3", "strides = [2, 2], pads = [0, 0, 0, 0]"),  # what is not read is no padding
        ("3, 2", "strides = [2, 2]"),
        ("3, 2", 'strides = [2, 2], auto_pad = "VALID"'),
    ],
)
def test_other_convolutions_stay(size, settings):
    model = convolution(size, settings)
    assert apply_pass(drop_idle_strides, model) == round_trip(model)


def test_images_of_any_size_keep_their_strides():
    model = convolution("height, width", "strides = [2, 2], pads = [0, 0, 0, 0]")
    assert not drop_idle_strides(ir.from_proto(model))


@pytest.mark.parametrize("kind", BODIES)
def test_a_stride_in_a_body_becomes_one_there(kind):
    nodes = "r = Conv <strides = [3, 2], pads = [0, 0, 0, 0]> (x, w)"
    after = apply_pass(drop_idle_strides, model_with_body(kind, nodes, (3, 3, 2), WEIGHTS))
    strides = {tuple(node.attributes["strides"].value) for node in all_nodes(after) if node.op_type == "Conv"}
    assert strides == {(1, 1)}

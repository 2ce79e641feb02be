import numpy as np
import pytest
import torch
from support.pass_checks import all_nodes, apply_pass, model_of_text, session_of

from enginewright.graph.passes import pool_whole_images

BEYOND = "kernel_shape = [8, 8], strides = [8, 8], ceil_mode = 1"


def pooling(kind, settings, sizes="batch, 3, 2, 4"):
    return model_of_text(f"g (float[{sizes}] input) => (float[] y) {{ y = {kind} <{settings}> (input) }}")


@pytest.mark.parametrize(("kind", "pytorch"), [("AveragePool", torch.nn.AvgPool2d), ("MaxPool", torch.nn.MaxPool2d)])
def test_a_window_beyond_the_image_pools_all_of_it(kind, pytorch):
    counted = ", count_include_pad = 1" if kind == "AveragePool" else ""
    changed = apply_pass(pool_whole_images, pooling(kind, BEYOND + counted))
    (node,) = all_nodes(changed)
    assert (node.op_type, len(node.attributes)) == (f"Global{kind}", 0)
    feeds = {"input": np.random.default_rng(0).normal(size=(2, 3, 2, 4)).astype(np.float32)}
    (got,) = session_of(changed).run(None, feeds)
    np.testing.assert_allclose(got, pytorch(8, ceil_mode=True)(torch.from_numpy(feeds["input"])), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ("kernel_shape = [2, 4], strides = [8, 8], ceil_mode = 1", "batch, 3, 2, 4"),  # as every compiler knows it
        ("kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1", "batch, 3, 2, 4"),
        (BEYOND, "batch, 3, 2, 9"),
        (f"{BEYOND}, pads = [1, 1, 1, 1]", "batch, 3, 2, 4"),
    ],
)
def test_other_pooling_stays(settings, sizes):
    (node,) = all_nodes(apply_pass(pool_whole_images, pooling("AveragePool", settings, sizes)))
    assert node.op_type == "AveragePool"

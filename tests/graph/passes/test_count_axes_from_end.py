import numpy as np
import pytest
from support.pass_checks import all_nodes, apply_pass, model_of_text

from enginewright.graph.passes.for_one_compiler import count_axes_from_end


@pytest.mark.parametrize(
    ("sizes", "axis", "order", "wanted"),
    [
        ("batch, 3, 4, 4", 1, [1, 2, 0], -3),
        ("batch, 3, 4", 1, [1, 2, 0], -2),
        ("batch, 3, 3, 4", 2, [1, 2, 0], 2),
        ("batch, 3", 1, [1, 2, 0], 1),  # no images
        ("batch, 3, 4, 4", 1, 2, 1),  # a single channel, and no axis any more
    ],
)
def test_the_axis_of_channels_in_another_order_is_counted_from_the_end(sizes, axis, order, wanted):
    text = f"g (float[{sizes}] input) => (float[] y) {{ y = Gather <axis = {axis}> (input, order) }}"
    (node,) = all_nodes(apply_pass(count_axes_from_end, model_of_text(text, {"order": np.array(order)})))
    assert node.attributes["axis"].value == wanted

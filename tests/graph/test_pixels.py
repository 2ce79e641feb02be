"""Graphs that take bytes and normalize them, against `normalize` in enginewright/data/preprocessing.py."""

import numpy as np
import onnx
import pytest
from support.pass_checks import model_of_text

from enginewright.core.params.samples import Preprocessing
from enginewright.data.preprocessing import as_fed, normalize
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.pixels import take_pixels

NORMALIZED = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
AS_THEY_ARE = {"divide_by": 1, "mean": (0, 0, 0), "std": (1, 1, 1)}
GREY = {"color": "grey", "mean": (0.4,), "std": (0.3,)}


def channels_in(layout, how):
    return ["height", "width", how.channels] if layout == "nhwc" else [how.channels, "height", "width"]


@pytest.mark.parametrize("pixels", ["nchw", "nhwc"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("given", [NORMALIZED, AS_THEY_ARE, GREY], ids=["normalized", "as they are", "grey"])
def test_a_graph_of_pixels_computes_the_same_bits_as_normalized_floats(layout, pixels, given):
    how = Preprocessing(resize=9, crop=(7, 9), layout=layout, **given)
    shape = ",".join(map(str, channels_in(layout, how)))
    text = f"g (float[batch,{shape}] input) => (float[] y) {{ y = Identity (input) }}"
    model = model_of_text(text, {})
    made = take_pixels(model, how, pixels)
    onnx.checker.check_model(made, full_check=True)
    stored = np.random.default_rng(0).integers(0, 256, (3, *how.shape), np.uint8)
    fed = as_fed(stored, how, pixels)
    assert (fed.dtype, fed.shape[{"nchw": 1, "nhwc": 3}[pixels]]) == (np.uint8, how.channels)
    sizes = [size.dim_param or size.dim_value for size in made.graph.input[0].type.tensor_type.shape.dim]
    assert sizes == ["batch", *channels_in(pixels, how)]
    (found,) = run_graph(open_as_written(made), {"input": fed}).values()
    assert np.array_equal(found, normalize(stored, how))
    assert take_pixels(model, how, None) is take_pixels(model, None, pixels) is model

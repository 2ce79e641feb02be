import numpy as np
import pytest
from support.pass_checks import BODIES, apply_pass, count_types, model_of_text, model_with_body, round_trip

from enginewright.graph.passes.for_one_compiler import spell_out_col2im


def folding(image, block, channels=2, **settings):
    """Return a model that folds columns, as many as the image has places for its blocks."""
    rank = len(image)
    strides, dilations = (settings.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = settings.get("pads", [0] * 2 * rank)
    places = [
        (image[axis] + pads[axis] + pads[rank + axis] - dilations[axis] * (block[axis] - 1) - 1) // strides[axis] + 1
        for axis in range(rank)
    ]
    columns, said = channels * np.prod(block), ", ".join(f"{name} = {sizes}" for name, sizes in settings.items())
    nodes = f"y = Col2Im {f'<{said}>' if said else ''} (input, image, block)"
    sizes = ",".join(map(str, ("batch", channels, *image)))
    return model_of_text(
        f"g (float[batch, {columns}, {np.prod(places)}] input) => (float[{sizes}] y) {{ {nodes} }}",
        {"image": np.array(image), "block": np.array(block)},
    )


FOLDINGS = {
    "side by side": ((4, 6), (2, 3), {"strides": [2, 3]}),
    "overlapping": ((5, 4), (3, 2), {}),
    "VOLO's attention": ((7, 7), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "dilated": ((7, 8), (2, 3), {"dilations": [3, 2]}),
    "padded at one side": ((5, 5), (3, 3), {"pads": [2, 0, 1, 1]}),
    "beyond the last block": ((8, 9), (2, 2), {"strides": [3, 4]}),
    "less padding than is beyond": ((8, 8), (3, 3), {"strides": [4, 4], "pads": [0, 0, 1, 1]}),
    "far beyond": ((8, 8), (2, 2), {"strides": [4, 7]}),
    "one axis": ((9,), (3,), {"strides": [2]}),
    "three axes": ((3, 4, 5), (2, 2, 3), {"pads": [0, 1, 0, 0, 0, 1]}),
}


@pytest.mark.parametrize("name", FOLDINGS)
def test_it_computes_the_same(name):
    image, block, settings = FOLDINGS[name]
    counts = count_types(apply_pass(spell_out_col2im, folding(image, block, **settings)))
    assert counts == {"Reshape": 1, "ConvTranspose": 1} | ({"Pad": 1} if "beyond" in name else {})


@pytest.mark.parametrize("kind", BODIES)
def test_it_is_spelled_out_in_a_body(kind):
    sizes = {"image": np.array([4, 4]), "block": np.array([2, 2])}
    nodes = "r = Col2Im <strides = [2, 2]> (x, image, block)"
    assert "Col2Im" not in count_types(apply_pass(spell_out_col2im, model_with_body(kind, nodes, (8, 4), sizes)))


def test_it_stays_where_the_size_of_the_image_is_computed():
    graph = """g (float[batch, 8, 4] input) => (float[] y) {
        size = Shape <start = 1, end = 2> (input)
        half = Div (size, two)
        image = Concat <axis = 0> (half, half)
        y = Col2Im <strides = [2, 2]> (input, image, block)
    }"""
    model = model_of_text(graph, {"two": np.array([2]), "block": np.array([2, 2])})
    assert apply_pass(spell_out_col2im, model) == round_trip(model)

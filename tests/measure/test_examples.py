"""Pictures of samples, as the model sees them."""

import numpy as np
import pytest
from PIL import Image

from enginewright.measure.examples import BETWEEN, as_image, beside

RED, GRAY = (200, 10, 20), (90, 90, 90)


@pytest.mark.parametrize(
    ("changes", "pixel", "seen"),
    [
        ({"layout": "nchw"}, RED, RED),
        ({"layout": "nhwc"}, RED, RED),
        ({"layout": "nchw", "color": "bgr"}, RED[::-1], RED),
        ({"layout": "nhwc", "color": "grey"}, GRAY[:1], GRAY),
    ],
    ids=str,
)
def test_pixels_are_shown_in_their_colours(preprocessing, changes, pixel, seen):
    pixels = np.tile(np.array(pixel, np.uint8), (4, 8, 1))
    how = preprocessing.model_copy(update=changes)
    image = as_image(pixels if how.layout == "nhwc" else pixels.transpose(2, 0, 1), how)
    assert image.getpixel((0, 0)) == seen
    assert image.width == 2 * image.height


def test_two_pictures_stand_beside_each_other_on_one_ground():
    low, high = Image.new("RGB", (10, 20), "red"), Image.new("RGB", (30, 50), "blue")
    for left, right in ((low, high), (high, low)):
        both = beside(left, right)
        assert both.size == (40 + BETWEEN, 50)
        colours = [both.getpixel((x, y)) for x in (0, left.width + BETWEEN) for y in (0, 49)]
        wanted = {10: [(255, 255, 255), (255, 0, 0)], 30: [(0, 0, 255)] * 2}
        assert colours == wanted[left.width] + wanted[right.width]

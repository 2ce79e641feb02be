import numpy as np
import pytest

from enginery.data.feeds import resized, scores_among

IMAGES = {"input": {0: "batch", 2: "height", 3: "width"}}


def test_images_are_cut_or_repeated_to_another_size():
    images = np.arange(2 * 3 * 2 * 3).reshape(2, 3, 2, 3)
    got = resized({"input": images}, IMAGES, {"batch": 7, "height": 5, "width": 2})["input"]
    assert got.shape == (2, 3, 5, 2)  # the batch is the caller's choice
    assert np.array_equal(got[:, :, :2], images[..., :2])
    assert np.array_equal(got[:, :, 4], images[:, :, 0, :2])


def test_only_an_axis_with_a_given_size_changes():
    images = np.zeros((2, 3, 4, 4))
    assert resized({"input": images}, IMAGES, {"batch": 2, "width": 6})["input"].shape == (2, 3, 4, 6)
    assert resized({"input": images}, {"input": {0: "batch"}}, {"batch": 2, "width": 6})["input"] is images


def test_channels_last_are_resized_where_their_height_and_width_are():
    images = np.zeros((2, 4, 5, 3))
    sizes = {"batch": 2, "height": 8, "width": 7}
    assert resized({"input": images}, {"input": {0: "batch", 1: "height", 2: "width"}}, sizes)["input"].shape == (
        2,
        8,
        7,
        3,
    )


@pytest.mark.parametrize(
    ("shapes", "classes", "asked", "found"),
    [
        ({"logits": (2, 10)}, 0, None, "logits"),
        ({"features": (2, 64), "scores": (2, 10)}, 10, None, "scores"),
        ({"centre": (2, 2), "scores": (2, 2)}, 2, None, None),  # as many columns as classes by chance
        ({"centre": (2, 2), "scores": (2, 2)}, 2, "scores", "scores"),
        ({"features": (2, 64), "scores": (2, 10)}, 0, None, None),  # boxes and scores look alike
        ({"features": (2, 64), "scores": (2, 10)}, 0, "scores", "scores"),
        ({"features": (2, 64), "scores": (2, 10)}, 10, "features", None),
        ({"scores": (2, 10), "map": (2, 10, 8, 8), "odds": (2, 1)}, 0, None, "scores"),
        ({"boxes": (2, 4)}, 0, "none", None),
        ({"scores": (2, 10)}, 10, "none", None),
        ({"scores": (2, 10)}, 9, None, None),
        ({"odds": (2, 1)}, 1, None, None),
        ({"pieces": ("batch", "height//8")}, 0, None, None),
        ({"scores": ("batch", 10)}, 10, None, "scores"),
        ({}, 10, None, None),
    ],
)
def test_the_scores_are_the_output_that_is_asked_for_or_the_only_one_of_their_shape(shapes, classes, asked, found):
    assert scores_among(shapes, classes, asked) == found

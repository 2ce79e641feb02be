import numpy as np

from enginery.data.feeds import resized

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

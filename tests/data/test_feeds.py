import numpy as np
import pytest

from enginewright.data.feeds import resized

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
    ("size", "wanted"),
    [
        (3, [[1, 3, 9], [1, 5, 9], [1, 1, 9], [9, 9, 9]]),
        (6, [[1, 3, 4, 5, 6, 9], [1, 5, 5, 5, 5, 9], [1, 1, 1, 1, 1, 9], [9] * 6]),
        (8, [[1, 3, 4, 5, 6, 3, 4, 9], [1, 5, 5, 5, 5, 5, 5, 9], [1] * 7 + [9], [9] * 8]),
        (1, [[9], [9], [9], [9]]),
    ],
)
def test_texts_of_another_length_begin_and_end_as_they_do_and_hold_no_padding(size, wanted):
    texts = np.array([[1, 3, 4, 5, 6, 9], [1, 5, 9, 0, 0, 0], [1, 9, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0]])
    mask = (texts > 0).astype(np.int64)
    axes = {name: {0: "batch", 1: "sequence"} for name in ("ids", "mask")}
    got = resized({"ids": texts, "mask": mask}, axes, {"sequence": size}, mask.sum(1))
    assert got["ids"].tolist() == wanted
    assert got["mask"].all()

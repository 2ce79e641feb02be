"""Sources read what tasks other than classification must know: masks, targets, scores of pairs."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from enginewright.core.errors import EnginewrightError
from enginewright.data.sample_set import SampleSet
from enginewright.data.sources import open_source
from enginewright.data.splits import write_split
from enginewright.tasks.choose import known_of

SCENES, ROWS, TABLE = Path("data/scenes"), Path("data/rows.npz"), Path("data/scenes.csv")
MASK = np.arange(8 * 12, dtype=np.uint8).reshape(8, 12) % 3


@pytest.fixture
def split(tmp_path, monkeypatch, samples_params):
    """Open a source for a task, write some samples of it, and read them back."""
    monkeypatch.chdir(tmp_path)
    for kind in ("images", "masks"):
        (SCENES / kind).mkdir(parents=True)
    for number in range(3):
        Image.fromarray(np.dstack([85 * MASK] * 3)).save(SCENES / f"images/{number}.png")
        Image.fromarray(np.where(number == MASK, 9, MASK)).save(SCENES / f"masks/{number}.png")

    def split(task, source, indices=(2, 0), **changes):
        params = samples_params(str(source), ignore=9, **changes)
        write_split(open_source(params, Path("data"), known_of(task)), indices, params, Path("split"), task)
        return SampleSet.open(Path("split"))

    return split


def refusal_of(split, *arguments, **changes):
    with pytest.raises(EnginewrightError) as caught:
        split(*arguments, **changes)
    return str(caught.value)


def test_a_mask_is_scaled_and_cropped_as_its_image_is(split, preprocessing):
    """The pixels of the image are 85 times their class."""
    nearest = preprocessing.model_copy(update={"interpolation": "nearest"})
    samples = split("segmentation", SCENES, preprocessing=nearest)
    pixels = np.load("split/input-0.npy")[:, 0]
    assert samples.manifest.task == "segmentation"
    for mask, image, hidden in zip(samples.truth, pixels, (2, 0), strict=True):
        assert np.array_equal(mask, np.where(image // 85 == hidden, 255, image // 85))


def test_masks_come_from_a_palette_a_table_or_an_array_as_well(split):
    wanted = split("segmentation", SCENES, [1]).truth
    palette = Image.fromarray(np.asarray(Image.open(SCENES / "masks/1.png"))).convert("P")
    palette.putpalette(list(range(255, -1, -1)) * 3)
    palette.save(SCENES / "masks/1.png")
    TABLE.write_text("path,mask\nscenes/images/1.png,scenes/masks/1.png\n")
    image, mask = (np.asarray(Image.open(SCENES / f"{kind}/1.png")) for kind in ("images", "masks"))
    np.savez(ROWS, images=image[np.newaxis], masks=mask[np.newaxis].astype(np.int64))
    for source, index in ((SCENES, 1), (TABLE, 0), (ROWS, 0)):
        assert np.array_equal(split("segmentation", source, [index]).truth, wanted)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda: (SCENES / "masks/1.png").unlink(), "images/1.png has no file of its name in data/scenes/masks"),
        (lambda: (SCENES / "images/1.png").unlink(), "masks/1.png has no file of its name in data/scenes/images"),
        (lambda: Image.fromarray(MASK[1:]).save(SCENES / "masks/2.png"), "12 by 7 pixels, and its image has 12 by 8"),
        (lambda: Image.fromarray(MASK + 254).save(SCENES / "masks/2.png"), "2.png holds the value 255; classes are"),
        (lambda: Image.fromarray(np.dstack([MASK] * 3)).save(SCENES / "masks/2.png"), "is a picture in colours; it"),
        (lambda: (SCENES / "masks/2.png").write_bytes(b"none"), "masks/2.png cannot be read: cannot identify"),
    ],
    ids=["no mask", "no image", "size", "value", "colours", "broken"],
)  # fmt: skip
def test_masks_that_do_not_fit_their_images_are_named(split, spoil, told):
    spoil()
    assert told in refusal_of(split, "segmentation", SCENES)


def test_images_without_masks_are_samples_without_truth(split):
    for path in (SCENES / "masks").iterdir():
        path.unlink()
    assert split("segmentation", SCENES).truth is None


def test_targets_stand_in_a_table_or_in_an_array(split):
    TABLE.write_text("path,target,target\nscenes/images/0.png,1,-2\nscenes/images/1.png,3e2,.5\n")
    assert split("regression", TABLE, [1, 0]).truth.tolist() == [[300, 0.5], [1, -2]]
    np.savez(ROWS, x=np.zeros((3, 4), np.float32), targets=np.array([5, 6, 7]))
    samples = split("regression", ROWS, [2, 0], preprocessing=None)
    assert (samples.truth.tolist(), samples.manifest.inputs) == ([[7], [5]], ("x",))
    TABLE.write_text("path,target\nscenes/images/0.png,tall\n")
    assert "scenes.csv, line 2, has the target 'tall', which is no finite number" in refusal_of(
        split, "regression", TABLE
    )
    np.savez(ROWS, x=np.zeros((3, 4), np.float32), targets=np.zeros(2))
    told = "targets of data/rows.npz is float64 of shape (2,); task regression needs one or more targets for each of 3"
    assert told in refusal_of(split, "regression", ROWS, preprocessing=None)


def test_pairs_with_scores_become_samples_beside_each_other(split):
    np.savez(ROWS, ids=np.arange(12).reshape(3, 2, 2), scores=[0.1, 0.2, 0.3])
    samples = split("embedding", ROWS, [2, 0], preprocessing=None)
    assert samples.read_at(np.arange(4))["ids"].tolist() == [[8, 9], [10, 11], [0, 1], [2, 3]]
    assert samples.truth.tolist() == [0.3, 0.1]
    assert [sample.name for sample in samples.manifest.samples][:2] == ["rows.npz/000002a", "rows.npz/000002b"]
    np.savez(ROWS, ids=np.arange(12).reshape(3, 4), scores=[0.1, 0.2, 0.3])
    assert "ids needs the two samples of a pair along its second axis" in refusal_of(
        split, "embedding", ROWS, preprocessing=None
    )
    np.savez(ROWS, ids=np.arange(12).reshape(3, 4))
    assert split("embedding", ROWS, preprocessing=None).truth is None


def test_folders_of_classes_have_no_labels_for_another_task(split, pets):
    assert split("embedding", pets).truth is split("embedding", "digits").truth is None
    assert split("classification", pets).truth.tolist() == [1, 0]

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from enginery.core.errors import EngineryError
from enginery.core.params import SamplesParams
from enginery.samples import SampleSet
from enginery.sources import Digits, ImageFolder, brought, open_source, split, write_split


@pytest.fixture
def params(preprocessing):
    def make(source="data/pets", seed=0, validation=5, training=4, calibration=3):
        return SamplesParams(
            source=source,
            seed=seed,
            validation=validation,
            training=training,
            calibration=calibration,
            preprocessing=preprocessing,
        )

    return make


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with data/pets: two cats and one dog, each image of one shade."""
    monkeypatch.chdir(tmp_path)
    for name, shade in {"dog/1.png": 30, "cat/b.JPG": 20, "cat/deeper/a.png": 10}.items():
        path = Path("data/pets") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 9), shade).save(path)
    Path("data/pets/cat/notes.txt").write_text("no image")
    Path("data/pets/.hidden").mkdir()
    return tmp_path


def test_splits_are_disjoint_and_have_the_asked_sizes(params):
    splits = split(20, params())
    assert {name: len(indices) for name, indices in splits.items()} == {
        "validation": 5,
        "training": 4,
        "calibration": 3,
    }
    chosen = [index for indices in splits.values() for index in indices]
    assert len(set(chosen)) == 12
    assert set(chosen) <= set(range(20))


def test_the_seed_decides_the_split(params):
    assert split(1000, params(seed=1)) == split(1000, params(seed=1))
    assert split(1000, params(seed=1)) != split(1000, params(seed=2))


def test_the_size_of_the_calibration_set_changes_nothing_else(params):
    few, many = split(20, params(calibration=2)), split(20, params(calibration=10))
    assert few["validation"] == many["validation"]
    assert few["training"] == many["training"]
    assert many["calibration"][:2] == few["calibration"]


def test_all_images_may_be_used(params):
    chosen = [index for indices in split(12, params()).values() for index in indices]
    assert sorted(chosen) == list(range(12))


def test_too_few_images_are_refused_with_the_sums(params):
    message = r"data/pets has 11 images, but params\.yaml asks for 12 \(validation 5, training 4, calibration 3\)"
    with pytest.raises(EngineryError, match=message):
        split(11, params())


def test_a_folder_of_class_folders_gives_names_labels_and_hashes(project, params):
    source = open_source(params(), Path("data"))
    prepared = [source.prepare(index, params().preprocessing) for index in range(len(source))]
    assert source.class_names == ("cat", "dog")
    found = [(item.sample.name, item.sample.label, int(item.pixels[0, 0, 0])) for item in prepared]
    assert found == [("cat/b.JPG", 0, 20), ("cat/deeper/a.png", 0, 10), ("dog/1.png", 1, 30)]
    assert len({item.sample.sha256 for item in prepared}) == 3


def test_a_split_is_written_in_order_and_read_back(project, params):
    source = ImageFolder(Path("data/pets"))
    write_split(source, [2, 0], params(), Path("artifacts/validation"))
    samples = SampleSet.open(Path("artifacts/validation"))
    assert samples.pixels.shape == (2, 3, 8, 8)
    assert samples.pixels[:, 0, 0, 0].tolist() == [30, 20]
    assert samples.labels.tolist() == [1, 0]
    assert samples.manifest.class_names == ("cat", "dog")
    assert samples.manifest.preprocessing == params().preprocessing


def test_a_split_may_be_empty(project, params):
    """Training is, where the weights are given."""
    write_split(ImageFolder(Path("data/pets")), [], params(), Path("empty"))
    samples = SampleSet.open(Path("empty"))
    assert (len(samples), samples.labels.tolist(), list(samples.batches(4))) == (0, [], [])


def test_a_broken_image_is_named_and_leaves_no_half_split(project, params):
    Path("data/pets/dog/1.png").write_bytes(b"\x89PNG broken")
    source = ImageFolder(Path("data/pets"))
    with pytest.raises(EngineryError, match=r"data/pets/dog/1\.png is not an image that can be decoded"):
        write_split(source, [0, 1, 2], params(), Path("out/split"))
    assert list(Path("out").iterdir()) == []


@pytest.mark.parametrize("path", ["/etc", "data/../elsewhere", "elsewhere", "data"])
def test_what_lies_outside_data_is_refused(project, path):
    Path("elsewhere").mkdir()
    with pytest.raises(EngineryError, match=rf"samples\.source: {path} does not lie in data/.*move it there"):
        brought(path, Path("data"), "samples.source", "digits")


def test_a_link_out_of_data_is_refused(project):
    Path("data/link").symlink_to("/etc")
    with pytest.raises(EngineryError, match="does not lie in data"):
        brought("data/link", Path("data"), "samples.source", "digits")


def test_what_does_not_exist_is_named(project):
    with pytest.raises(EngineryError, match=r"weights\.source: data/none\.pt does not exist"):
        brought("data/none.pt", Path("data"), "weights.source", "train")


def test_a_folder_without_images_is_refused(project, params):
    Path("data/empty/cat").mkdir(parents=True)
    with pytest.raises(EngineryError, match="data/empty holds no images: it needs a folder per class"):
        open_source(params("data/empty"), Path("data"))


def test_a_file_is_no_source(project, params):
    with pytest.raises(EngineryError, match=r"data/pets/dog/1\.png is a file; give 'digits' or a folder"):
        open_source(params("data/pets/dog/1.png"), Path("data"))


def test_the_digits_are_scaled_to_the_full_range(preprocessing):
    digits = Digits()
    assert len(digits) == 1797
    assert digits.class_names == tuple("0123456789")
    first = digits.prepare(0, preprocessing)
    assert first.sample.label == 0
    assert first.pixels.shape == (3, 8, 8)
    assert first.pixels.max() == round(15 * 255 / 16)  # of 16 shades, this zero uses all but the last
    assert np.array_equal(first.pixels[0], first.pixels[2])

"""NumPy files of pixels."""

from pathlib import Path

import numpy as np
import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import Preprocessing
from enginewright.data.sources import open_source

COLORS = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
AS_IS = Preprocessing(resize=8, crop=8, interpolation="nearest", layout="nhwc", mean=(0, 0, 0), std=(1, 1, 1))
NPY, NPZ = Path("data/set.npy"), Path("data/set.npz")


@pytest.fixture
def opened(tmp_path, monkeypatch, samples_params):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    return lambda path, **changes: open_source(samples_params(str(path), **changes), Path("data"))


def prepared(source):
    return [source.prepare(index, AS_IS) for index in range(len(source))]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("labels", [np.array([0, 2, 1, 2, 0]), np.array(["a", "c", "b", "c", "a"])])
def test_an_npz_has_images_and_labels(opened, save, labels):
    save(NPZ, images=COLORS, labels=labels)
    source = opened(NPZ)
    found = prepared(source)
    assert np.array_equal([item.pixels for item in found], COLORS)
    assert [item.sample.label for item in found] == [0, 2, 1, 2, 0]
    assert source.class_names == (("0", "1", "2") if labels.dtype.kind == "i" else ("a", "b", "c"))
    assert len({item.sample.sha256 for item in found}) == 5
    assert found[3].sample.name == "set.npz/000003"


def test_images_alone_have_no_labels(opened):
    np.save(NPY, COLORS)
    np.savez(NPZ, images=COLORS)
    for path in (NPY, NPZ):
        source = opened(path)
        assert np.array_equal([item.pixels for item in prepared(source)], COLORS)
        assert ({item.sample.label for item in prepared(source)}, source.class_names) == ({None}, ())


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 8, 8, 1)])
def test_grey_images_may_lack_the_channel(opened, shape):
    np.save(NPY, COLORS[..., 0].reshape(shape))
    assert np.array_equal([item.pixels for item in prepared(opened(NPY))], np.stack([COLORS[..., 0]] * 3, axis=3))


def test_pixels_are_mapped_and_not_loaded(opened):
    np.savez(NPZ, images=COLORS)
    source = opened(NPZ)
    assert isinstance(source.images, np.memmap)
    assert np.array_equal(source.prepare(4, AS_IS).pixels, COLORS[4])  # although the unpacked file has lost its name


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": COLORS.astype(np.float32)}, r"are float32 of shape \(5, 8, 8, 3\); they must be uint8 of"),
        ({"images": COLORS.astype(np.int8)}, "are int8 of shape"),
        ({"images": COLORS.transpose(0, 3, 1, 2)}, r"are uint8 of shape \(5, 3, 8, 8\); they must be"),
        ({"images": COLORS[0, 0]}, r"are uint8 of shape \(8, 3\)"),
        ({"images": COLORS[:0]}, r"holds no images: its shape is \(0, 8, 8, 3\)"),
        ({"pixels": COLORS}, "holds pixels, but no array called images; .* set samples.preprocessing: null"),
        (
            {"images": COLORS, "labels": np.arange(4)},
            r"are int64 of shape \(4,\); they must be whole numbers or names o",
        ),
        ({"images": COLORS, "labels": np.ones(5)}, r"are float64 of shape \(5,\)"),
        (
            {"images": COLORS, "labels": np.array([0, 1, 2, -1, 0])},
            "image 3, gives the label '-1', which is not from 0 t",
        ),
        (
            {"images": COLORS, "labels": np.array([0, 1, 2, 1, None])},
            "cannot be read as a NumPy file: .*Python objects in dtype",
        ),
        ({"images": np.array([None] * 5)}, "cannot be read as a NumPy file"),
    ],
)
def test_other_arrays_are_refused(opened, arrays, message):
    np.savez(NPZ, **arrays)
    with pytest.raises(EnginewrightError, match=rf"samples\.source: .*data/set\.npz.*{message}"):
        opened(NPZ)


def test_a_label_outside_the_list_is_refused(opened):
    np.savez(NPZ, images=COLORS, labels=np.array([0, 1, 2, 1, 0]))
    with pytest.raises(EnginewrightError, match=r"set\.npz, image 2, gives the label '2', which is not from 0 to 1"):
        opened(NPZ, class_names=("cat", "dog"))


@pytest.mark.parametrize("path", [NPY, NPZ])
def test_broken_files_and_pickled_objects_are_refused(opened, path):
    np.savez(NPZ, images=COLORS)
    np.save(NPY, COLORS)
    whole = path.read_bytes()
    for content in (b"", whole[:60], whole[: len(whole) // 2], b"not numpy"):
        path.write_bytes(content)
        with pytest.raises(EnginewrightError, match=r"cannot be read as a NumPy file"):
            opened(path)
    np.save(NPY, np.array([{"run": "code"}] * 5), allow_pickle=True)
    with pytest.raises(EnginewrightError, match="cannot be read as a NumPy file"):
        opened(NPY)

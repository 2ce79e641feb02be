from pathlib import Path

import numpy as np
import pytest

from enginery.preprocessing import normalize
from enginery.samples import PIXELS, SampleSet


@pytest.mark.parametrize(("size", "wanted"), [(5, [5, 5, 5, 5, 1]), (21, [21]), (30, [21])])
def test_batches_cover_the_samples_in_order(samples, size, wanted):
    batches = list(samples.batches(size))
    assert [len(batch) for batch in batches] == wanted
    assert np.array_equal(np.concatenate(batches), samples.read(0, sum(wanted)))


def test_reading_normalizes_the_stored_bytes(samples, preprocessing):
    assert np.array_equal(samples.read(3, 5), normalize(np.asarray(samples.pixels[3:5]), preprocessing))
    assert np.array_equal(samples.read_at(np.array([4, 3])), samples.read(3, 5)[::-1])


def test_pixels_are_mapped_and_not_loaded(samples):
    assert isinstance(samples.pixels, np.memmap)
    assert str(samples.pixels.filename).endswith(PIXELS)


def test_a_batch_that_was_read_takes_no_memory_any_more(samples):
    def is_mapped():
        return str(samples.folder / PIXELS) in Path("/proc/self/maps").read_text()

    held = samples.pixels
    assert is_mapped()
    del held
    batches = samples.batches(5)
    assert next(batches).shape == (5, 3, 8, 8)
    assert not is_mapped()


def test_the_lists_hash_follows_images_and_order_but_not_preprocessing(samples, manifest, preprocessing):
    def with_manifest(**changes):
        return SampleSet(samples.folder, manifest.model_copy(update=changes))

    reordered = with_manifest(samples=manifest.samples[::-1])
    prepared = with_manifest(preprocessing=preprocessing.model_copy(update={"crop": (7, 7)}))
    assert reordered.list_sha256 != samples.list_sha256 == prepared.list_sha256
    assert reordered.preprocessing_sha256 == samples.preprocessing_sha256 != prepared.preprocessing_sha256


def test_labels_are_none_if_the_images_have_none(samples, manifest):
    bare = tuple(sample.model_copy(update={"label": None}) for sample in manifest.samples)
    assert SampleSet(samples.folder, manifest.model_copy(update={"samples": bare})).labels is None
    assert samples.labels.tolist() == [sample.label for sample in manifest.samples]

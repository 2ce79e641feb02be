import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.errors import error_of

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Axis, Profile, Range
from enginewright.data.preprocessing import normalize
from enginewright.data.run_all import outputs_here, run_all
from enginewright.data.sample_set import SampleSet, checked_feeds, input_file, varying_axes


@pytest.mark.parametrize(("size", "wanted"), [(5, [5, 5, 5, 5, 1]), (21, [21]), (30, [21])])
def test_batches_cover_the_samples_in_order(samples, size, wanted):
    batches = list(samples.batches(size))
    assert [len(batch["input"]) for batch in batches] == wanted
    read = np.concatenate([batch["input"] for batch in batches])
    assert np.array_equal(read, samples.read_at(np.arange(21))["input"])


def test_whole_batches_are_filled_up_from_the_start(samples):
    *_, last = samples.batches(5, whole=True)
    assert np.array_equal(last["input"], samples.read_at(np.array([20, 0, 1, 2, 3]))["input"])


def test_reading_normalizes_the_stored_bytes(samples, preprocessing):
    stored = np.load(samples.folder / input_file(0))
    assert np.array_equal(samples.read_at(np.array([4, 3]))["input"], normalize(stored[[4, 3]], preprocessing))


def test_engines_of_pixels_are_fed_the_stored_bytes_in_their_layout(samples, build):
    stored = np.load(samples.folder / input_file(0))
    planar, last = (samples.fed_to(build.model_copy(update={"pixels": layout})) for layout in ("nchw", "nhwc"))
    assert np.array_equal(planar.read_at(np.array([4, 3]))["input"], stored[[4, 3]])
    assert np.array_equal(last.cycled(2)["input"], stored[:2].transpose(0, 2, 3, 1))
    assert (planar.axes, last.axes) == ({0: "batch", 2: "height", 3: "width"}, {0: "batch", 1: "height", 2: "width"})
    wider = Profile(batch=Range(min=1, opt=1, max=2), width=Range(min=8, opt=8, max=12))
    assert last.at({"batch": 1, "width": 12}, wider).cycled(1)["input"].shape == (1, 8, 12, 3)


def test_the_set_repeats_if_more_samples_are_asked_for_than_there_are(samples):
    assert np.array_equal(samples.cycled(23)["input"][21:], samples.cycled(2)["input"])


def test_no_map_of_a_batch_stays_open(samples):
    assert next(samples.batches(5))["input"].shape == (5, 3, 8, 8)
    assert str(samples.folder / input_file(0)) not in Path("/proc/self/maps").read_text()


def test_arrays_without_preprocessing_are_fed_as_they_came(tmp_path, manifest):
    ids, mask = np.arange(42).reshape(21, 2), np.ones((21, 3), np.float32)
    for index, array in enumerate((ids, mask)):
        np.save(tmp_path / input_file(index), array)
    raw = SampleSet(tmp_path, manifest.model_copy(update={"inputs": ("ids", "mask"), "preprocessing": None}))
    feeds = raw.read_at(np.array([3, 1]))
    assert feeds["ids"].tolist() == [[6, 7], [2, 3]]
    assert feeds["ids"].dtype == np.int64
    assert feeds["mask"].shape == (2, 3)
    assert raw.axes == {0: "batch"}


def test_outputs_come_in_order_without_those_that_fill_up_the_last_batch(samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []

    def answers(feeds):
        seen.append(len(feeds["input"]))
        return {"sums": feeds["input"].sum(axis=(2, 3)), "count": np.full(len(feeds["input"]), len(seen))}

    found = run_all(outputs_here(answers), samples, 4, True, "test")
    images = samples.read_at(np.arange(len(samples)))["input"]
    assert np.array_equal(found["sums"], images.sum(axis=(2, 3)))
    assert found["count"].tolist() == [1 + index // 4 for index in range(len(samples))]
    assert set(seen) == {4}
    assert list(tmp_path.iterdir()) == [], "the files have no names"


def test_outputs_whose_size_depends_on_values_are_refused(samples):
    def found(feeds):
        return {"boxes": np.zeros((len(feeds["input"]), 1 + int(feeds["input"].argmax()) % 2))}

    with pytest.raises(EnginewrightError) as caught:
        run_all(outputs_here(found), samples, 1, False, "test")
    assert re.fullmatch(
        r"output boxes has the shape \([12],\) for some samples and \([12],\) for others of the same size: "
        "what depends on their values cannot be compared; return it before it is selected",
        str(caught.value),
    )


def test_an_empty_set_gives_zeros_of_the_right_shape(tmp_path, manifest):
    np.save(tmp_path / input_file(0), np.zeros((0, 3, 8, 8), np.uint8))
    empty = SampleSet(tmp_path, manifest.model_copy(update={"samples": ()}))
    assert empty.cycled(2)["input"].shape == (2, 3, 8, 8)
    assert empty.cycled(2)["input"].dtype == np.float32


@pytest.mark.parametrize(("layout", "axes"), [("nchw", {2: "height", 3: "width"}), ("nhwc", {1: "height", 2: "width"})])
def test_the_axes_of_height_and_width_follow_the_layout(samples, manifest, preprocessing, layout, axes):
    changed = manifest.model_copy(update={"preprocessing": preprocessing.model_copy(update={"layout": layout})})
    assert SampleSet(samples.folder, changed).axes == {0: "batch"} | axes


TEXTS = {"ids": np.zeros((2, 24), np.int64), "mask": np.zeros((2, 24), bool), "pixels": np.zeros((2, 3, 5, 24))}


def axes_of(tmp_path, manifest, **axes):
    for index, array in enumerate(TEXTS.values()):
        np.save(tmp_path / input_file(index), array)
    arrays = manifest.model_copy(update={"preprocessing": None, "inputs": tuple(TEXTS)})
    profile = Profile(batch=Range(min=1, opt=1, max=2), axes={name: Axis(**axis) for name, axis in axes.items()})
    return varying_axes(SampleSet(tmp_path, arrays), profile)


SIZES = {"min": 8, "opt": 24, "max": 32}


def test_axes_get_their_names_where_the_profile_says(tmp_path, manifest):
    places, three = {"ids": 1, "mask": 1, "pixels": 3}, {"min": 3, "opt": 3, "max": 9, "inputs": {"pixels": 1}}
    assert axes_of(tmp_path, manifest, length=SIZES | {"inputs": places}, channels=three) == {
        "ids": {0: "batch", 1: "length"},
        "mask": {0: "batch", 1: "length"},
        "pixels": {0: "batch", 3: "length", 1: "channels"},
    }


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"id": 1}, "there is no input id; the samples give ids, mask, pixels"),
        ({"ids": 2}, "input ids has no axis 2: the samples are (24,)"),
        (None, "inputs that share an axis have one size there, and the samples 24 in ids, 24 in mask, 3 in pixels"),
        ({"pixels": 2}, "the samples have 5 there, which is not within 8 to 32"),
    ],
)
def test_axes_that_do_not_fit_the_samples_are_refused(tmp_path, manifest, inputs, told):
    with pytest.raises(EnginewrightError, match=re.escape(f"build.profile.axes.length: {told}")):
        axes_of(tmp_path, manifest, length=SIZES | {"inputs": inputs})


def test_values_of_inputs_that_hold_sizes_are_axes_too(samples, manifest):
    """The value without an axis stays as it is."""
    sized = SampleSet(samples.folder, manifest.model_copy(update={"values": {"sizes": (12, 3), "count": 9}}))
    axis = partial(Axis, min=8, opt=10, max=16)
    axes = {"rows": axis(values={"sizes": 0}), "count": axis(values={"count": 0})}
    checked = checked_feeds(sized, Profile(batch=Range(min=1, opt=1, max=2), axes=axes))
    assert [[feeds[name].tolist() for name in ("sizes", "count")] for feeds in checked] == [
        [[12, 3], 9], [[8, 3], 8], [[16, 3], 16],
    ]  # fmt: skip
    for values, told in (({"sizes": 2}, "samples.values gives input sizes no number at place 2"),
                         ({"sizes": 1}, "the samples have 3 there, which is not within 8 to 16")):  # fmt: skip
        profile = Profile(batch=Range(min=1, opt=1, max=2), axes={"rows": axis(values=values)})
        assert error_of(varying_axes, sized, profile) == f"build.profile.axes.rows: {told}"


def test_an_axis_has_one_name(tmp_path, manifest):
    with pytest.raises(
        EnginewrightError, match=r"build\.profile\.axes\.other: axis 1 of input ids is the length already"
    ):
        axes_of(tmp_path, manifest, length=SIZES | {"inputs": {"ids": 1}}, other=SIZES | {"inputs": {"ids": 1}})


def test_the_lists_hash_follows_images_and_order_but_not_preprocessing(samples, manifest, preprocessing):
    def with_manifest(**changes):
        return SampleSet(samples.folder, manifest.model_copy(update=changes))

    reordered = with_manifest(samples=manifest.samples[::-1])
    prepared = with_manifest(preprocessing=preprocessing.model_copy(update={"crop": (7, 7)}))
    assert reordered.list_sha256 != samples.list_sha256 == prepared.list_sha256
    assert reordered.preprocessing_sha256 == samples.preprocessing_sha256 != prepared.preprocessing_sha256


def test_labels_are_none_if_the_images_have_none(samples, manifest):
    bare = tuple(replace(sample, label=None) for sample in manifest.samples)
    assert SampleSet(samples.folder, manifest.model_copy(update={"samples": bare})).labels is None
    assert samples.labels.tolist() == [sample.label for sample in manifest.samples]


def test_a_graph_is_checked_at_its_own_size_and_at_the_ends_of_its_ranges(samples):
    def shapes(**ranges):
        return [feeds["input"].shape for feeds in checked_feeds(samples, Profile(**ranges))]

    batch, fixed = Range(min=1, opt=2, max=8), Range(min=4, opt=4, max=4)
    height, width = Range(min=6, opt=8, max=9), Range(min=8, opt=8, max=10)
    assert shapes(batch=batch, height=height, width=width) == [(7, 3, 8, 8), (7, 3, 6, 8), (7, 3, 9, 10)]
    assert shapes(batch=batch) == [(7, 3, 8, 8)]
    assert shapes(batch=Range(min=1, opt=2, max=4)) == [(4, 3, 8, 8)]
    assert shapes(batch=Range(min=16, opt=16, max=32)) == [(16, 3, 8, 8)]
    assert shapes(batch=fixed) == [(4, 3, 8, 8)]

from contextlib import nullcontext

import numpy as np
import pytest

from enginewright.precision.calibration.histogram import CHUNK, Histogram, counting_in_threads


def filled(*parts, bins=64, count=np.bincount):
    histogram = Histogram(bins)
    for part in parts:
        histogram.add(np.asarray(part, np.float32), count)
    return histogram


def signed_values(seed, size=5000):
    """Return values over several orders of magnitude, of both signs, with zeros."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, size) * 10 ** rng.uniform(-3, 3)
    values[rng.random(size) < 0.2] = 0
    return values.astype(np.float32)


def same(one, other):
    return one.width == other.width and one.amax == other.amax and np.array_equal(one.counts, other.counts)


@pytest.mark.parametrize("counting", [lambda: nullcontext(np.bincount), counting_in_threads])
@pytest.mark.parametrize("seed", range(10))
def test_counts_are_those_of_a_plain_histogram(seed, counting):
    values = signed_values(seed)
    with counting() as count:
        histogram = filled(values, count=count)
    edges = np.arange(len(histogram.counts) + 1) * histogram.width
    assert np.array_equal(histogram.counts, np.histogram(np.abs(values).astype(np.float64), edges)[0])


@pytest.mark.parametrize("seed", range(20))
def test_the_result_does_not_depend_on_how_the_stream_is_cut(seed):
    rng = np.random.default_rng(1000 + seed)
    values = signed_values(seed)
    cuts = np.sort(rng.integers(0, len(values), rng.integers(1, 12)))
    assert same(filled(*np.split(values, cuts)), filled(values))


@pytest.mark.parametrize("seed", range(20))
def test_histograms_of_parts_merge_into_that_of_the_whole(seed):
    rng = np.random.default_rng(2000 + seed)
    values = np.concatenate([np.zeros(3), *(signed_values(10 * seed + part, 300) for part in range(4))])
    parts = np.split(values, np.sort(rng.integers(0, len(values), rng.integers(1, 12))))
    merged = filled()
    for part in parts:
        merged.merge(filled(part))
    whole = filled(*parts)
    assert same(merged, whole)
    assert (merged.lowest, merged.peaks) == (whole.lowest, whole.peaks)


@pytest.mark.parametrize("order", [np.array, np.sort, lambda values: np.sort(values)[::-1]])
@pytest.mark.parametrize("seed", range(5))
def test_the_result_does_not_depend_on_the_order_in_which_the_range_grows(seed, order):
    values = signed_values(seed, size=400)
    one_by_one = filled(*order(np.abs(values))[:, None])
    assert same(one_by_one, filled(np.abs(values)))


def test_values_on_the_edge_of_the_range_stay_in_their_bin_when_the_range_grows():
    """1, 2 and 4 are the upper edges of the ranges that a histogram of powers of two goes through."""
    assert same(filled([1.0], [2.0], [4.0], [5.0]), filled([1.0, 2.0, 4.0, 5.0]))


def test_a_stream_longer_than_a_chunk_is_counted_whole():
    values = np.random.default_rng(0).normal(size=2 * CHUNK + 17).astype(np.float32)
    histogram = filled(values)
    assert histogram.counts.sum() == len(values)
    assert same(histogram, filled(*np.array_split(values, 7)))


@pytest.mark.parametrize("bins", [64, 100, 2048])
@pytest.mark.parametrize("seed", range(5))
def test_the_largest_value_lies_between_the_asked_number_of_bins_and_twice_that(seed, bins):
    histogram = filled(signed_values(seed), bins=bins)
    assert bins < len(histogram.occupied()) <= 2 * bins
    assert (
        (len(histogram.occupied()) - 1) * histogram.width
        <= histogram.amax
        < len(histogram.occupied()) * histogram.width
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_largest_magnitude_is_exact_and_no_value_is_lost(seed):
    values = signed_values(seed)
    histogram = filled(*np.split(values, [10, 400, 4000]))
    assert histogram.amax == np.abs(values).max()
    assert histogram.counts.sum() == len(values)


def test_memory_does_not_grow_with_the_stream_or_its_range():
    histogram = Histogram(64)
    sizes = set()
    for power in range(-30, 30):
        histogram.add(np.full(100, 10.0**power, np.float32))
        sizes.add(len(histogram.counts))
    assert sizes == {128}


def test_only_zeros_leave_everything_in_the_first_bin():
    histogram = filled(np.zeros(10), np.zeros(5))
    assert (histogram.amax, histogram.width) == (0, 0)
    assert histogram.occupied().tolist() == [15]


def test_zeros_before_the_first_value_are_kept():
    histogram = filled(np.zeros(10), [3.0, 0.0])
    assert histogram.counts[0] == 11
    assert histogram.counts.sum() == 12


def test_an_empty_batch_changes_nothing():
    assert same(filled([1.0], []), filled([1.0]))


@pytest.mark.parametrize("tiny", [1e-45, 1e-38, 1e-36])
def test_values_too_small_to_tell_apart_are_still_counted(tiny):
    histogram = filled([tiny, -tiny, 0.0])
    assert histogram.counts.sum() == 3
    assert same(filled([tiny], [1.0]), filled([tiny, 1.0]))


def test_the_largest_float32_is_counted():
    largest = np.finfo(np.float32).max
    histogram = filled([1.0], [largest])
    assert histogram.amax == largest
    assert histogram.counts.sum() == 2


def test_the_minus_infinity_of_a_mask_counts_as_the_lowest_number():
    lowest = np.finfo(np.float32).min
    assert same(filled([1.0], [2.0, -np.inf, 3.0]), filled([1.0], [2.0, lowest, 3.0]))


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_nan_and_infinity_are_refused(broken):
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        filled([1.0], [2.0, broken, 3.0])


def test_the_extremes_of_channels_are_those_of_all_parts():
    values = np.random.default_rng(0).normal(size=(9, 4, 5)).astype(np.float32)
    parts = [Histogram(64) for _ in range(3)]
    for part, few in zip(parts, np.split(values, 3), strict=True):
        part.add_channels(few[:1])
        part.add_channels(few[1:])
    whole = Histogram(64)
    for part in parts:
        whole.merge(part)
    assert whole.channels.tolist() == [values.min(axis=(0, 2)).tolist(), values.max(axis=(0, 2)).tolist()]

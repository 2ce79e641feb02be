import numpy as np
import pytest

from enginewright.precision.calibration.histogram import BINS, Histogram, choose_amax, sketch


def filled(values, bins=2048):
    histogram = Histogram(bins)
    histogram.add(np.asarray(values, np.float32))
    return histogram


@pytest.mark.parametrize("seed", range(5))
def test_a_sketch_counts_every_value_once_in_its_bin(seed):
    values = np.abs(np.random.default_rng(seed).normal(0, 3, 5000)).astype(np.float32)
    got = sketch(filled(values), float(values.max()))
    assert len(got.counts) == BINS
    edges = np.arange(BINS + 1) * got.width
    assert list(got.counts) == np.histogram(values.astype(np.float64), edges)[0].tolist()
    assert (got.largest, got.clipped) == (values.max(), 0)


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
def test_what_is_clipped_is_the_share_beyond_the_threshold(method):
    values = np.abs(np.random.default_rng(1).standard_t(2, 200_000)).astype(np.float32)
    histogram = filled(values)
    amax = choose_amax(histogram, method, 99.9)
    got = sketch(histogram, amax)
    assert got.clipped == np.mean(values >= amax) > 0  # a threshold is an edge, which belongs to the bin above


def test_what_is_always_zero_can_be_sketched():
    got = sketch(filled(np.zeros(10)), 0.0)
    assert sum(got.counts) == 10
    assert (got.width, got.largest, got.clipped) == (0, 0, 0)

import math

import numpy as np
import pytest

from enginewright.precision.calibration.histogram import Histogram, choose_amax, entropy_bins, mse_bins, percentile_bins

LEVELS = 127


def histogram_of(values, bins=2048):
    histogram = Histogram(bins)
    histogram.add(np.asarray(values, np.float32))
    return histogram


def counted(values, bins):
    return np.histogram(np.abs(values), bins=bins, range=(0, np.abs(values).max()))[0]


def half_normal_with_outliers(size=200_000):
    rng = np.random.default_rng(0)
    return np.concatenate([np.abs(rng.normal(0, 1, size)), [40.0, 41.0, 42.0]])


def nvidia_entropy_bins(counts):
    """Run NVIDIA's algorithm as its slides have it (GTC 2017, 8-bit inference with TensorRT)."""
    bins = [float(count) for count in counts]
    bins[0] = bins[1]
    best, least = None, math.inf
    for i in range(LEVELS + 1, len(bins) + 1):
        reference = bins[:i]
        reference[i - 1] += sum(bins[i:])
        candidate = [0.0] * i
        for level in range(LEVELS):
            inside = range(i * level // LEVELS, i * (level + 1) // LEVELS)
            filled = [j for j in inside if bins[j] > 0]
            for j in filled:
                candidate[j] = sum(bins[j] for j in inside) / len(filled)
        divergence = kullback_leibler(reference, candidate)
        if divergence < least:
            best, least = i, divergence
    return best


def kullback_leibler(p, q):
    p_sum, q_sum = sum(p), sum(q)
    if q_sum == 0:
        return math.inf
    total = 0.0
    for p_value, q_value in zip(p, q, strict=True):
        if p_value > 0:
            if q_value == 0:
                return math.inf
            total += p_value / p_sum * math.log((p_value / p_sum) / (q_value / q_sum))
    return total


def random_counts(kind, seed, bins=300):
    rng = np.random.default_rng(seed)
    values = {
        "gaussian": lambda: rng.normal(0, 1, 20_000),
        "exponential": lambda: rng.exponential(1, 20_000),
        "outliers": lambda: np.concatenate([rng.normal(0, 1, 20_000), rng.uniform(5, 12, 15)]),
        "relu": lambda: np.maximum(rng.normal(-0.5, 1, 20_000), 0),
        "two humps": lambda: np.concatenate([rng.normal(0, 0.2, 20_000), rng.normal(5, 0.3, 3_000)]),
        "sparse": lambda: rng.choice(rng.exponential(1, 90), 5_000),
    }[kind]()
    return counted(values, bins)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["gaussian", "exponential", "outliers", "relu", "two humps", "sparse"])
def test_entropy_chooses_what_nvidias_algorithm_chooses(kind, seed):
    counts = random_counts(kind, seed)
    assert entropy_bins(counts) == nvidia_entropy_bins(counts)


def test_entropy_agrees_with_nvidias_algorithm_at_other_sizes():
    for bins in (128, 129, 200, 381):
        counts = random_counts("outliers", seed=bins, bins=bins)
        assert entropy_bins(counts) == nvidia_entropy_bins(counts)


@pytest.mark.parametrize("seed", [2, 5, 504])
def test_entropy_agrees_with_nvidias_algorithm_on_few_values(seed):
    """A bin without a value, or with one, is the last of a candidate, and one value or none lies beyond it."""
    random = np.random.default_rng(seed)
    counts = np.zeros(random.integers(129, 200), np.int64)
    counts[1 : random.integers(2, 128)] = random.integers(0, 9)
    counts[random.integers(0, len(counts), 4)] = random.integers(0, 3, 4)
    assert entropy_bins(counts) == nvidia_entropy_bins(counts)


def test_entropy_does_not_clip_a_uniform_distribution():
    assert entropy_bins(np.full(2048, 100)) == 2048


def test_entropy_clips_a_long_thin_tail():
    """There is a bell over the first 512 bins, and 20 stray values far out, which would cost most of the levels."""
    counts = np.zeros(2048, np.int64)
    counts[:512] = 10_000 * np.exp(-0.5 * (np.arange(512) / 150) ** 2) + 1
    counts[1500:2048:28] = 1
    assert entropy_bins(counts) <= 640


def test_entropy_differs_from_max_where_there_are_outliers():
    """Other tools have 128 bins for 128 levels, so one candidate only, and their entropy equals their max."""
    histogram = histogram_of(half_normal_with_outliers())
    assert choose_amax(histogram, "max", 99.99) == 42
    assert 3 < choose_amax(histogram, "entropy", 99.99) < 8


@pytest.mark.parametrize(
    ("percentile", "wanted"),
    [
        (51, 1),
        (60, 1),
        (60.5, 2),
        (80, 2),
        (95, 3),
        (99, 5),
        (100, 6),
    ],
)
def test_percentile_takes_the_fewest_bins_that_hold_the_share(percentile, wanted):
    counts = np.array([60, 20, 15, 0, 4, 1])
    assert percentile_bins(counts, percentile) == wanted


def test_percentile_keeps_the_asked_share_of_real_values():
    values = np.arange(1, 100_001) / 1000  # 0.001 to 100
    histogram = histogram_of(values)
    amax = choose_amax(histogram, "percentile", 99.9)
    assert amax == pytest.approx(99.9, abs=histogram.width)
    assert np.mean(values <= amax) >= 0.999


def test_percentile_100_is_max():
    histogram = histogram_of(half_normal_with_outliers())
    assert choose_amax(histogram, "percentile", 100) == histogram.amax


def squared_error(counts, bins):
    """Return the error of rounding to the nearest of 127 steps up to `bins`, for values in the middle of their bins."""
    step = bins / LEVELS
    total = 0.0
    for j, count in enumerate(counts):
        level = min(round((j + 0.5) / step), LEVELS)
        total += count * (level * step - (j + 0.5)) ** 2
    return total


@pytest.mark.parametrize("kind", ["gaussian", "exponential", "outliers", "two humps"])
def test_mse_chooses_the_least_squared_error_of_all_thresholds(kind):
    counts = random_counts(kind, seed=0)
    every = range(LEVELS + 1, len(counts) + 1)
    wanted = min(every, key=lambda bins: squared_error(counts, bins))
    assert mse_bins(counts, candidates=len(every)) == wanted


def test_mse_with_few_candidates_comes_close_to_the_least_error():
    counts = random_counts("outliers", seed=1)
    least = min(squared_error(counts, bins) for bins in range(LEVELS + 1, len(counts) + 1))
    assert squared_error(counts, mse_bins(counts, candidates=40)) <= 1.1 * least


def test_max_is_the_exact_largest_magnitude():
    assert choose_amax(histogram_of([0.1, -7.3, 2.0]), "max", 99.99) == np.float32(7.3)


@pytest.mark.parametrize("method", ["max", "percentile", "entropy", "mse"])
def test_no_method_goes_beyond_the_largest_magnitude(method):
    for seed in range(5):
        values = np.random.default_rng(seed).uniform(0, 1, 10_000)
        histogram = histogram_of(values)
        assert 0.5 * histogram.amax < choose_amax(histogram, method, 99.99) <= histogram.amax


@pytest.mark.parametrize("method", ["max", "percentile", "entropy", "mse"])
def test_a_tensor_of_zeros_has_the_range_zero(method):
    assert choose_amax(histogram_of(np.zeros(10)), method, 99.99) == 0


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
def test_clipping_scales_with_the_values(method):
    values = half_normal_with_outliers()
    small, large = (choose_amax(histogram_of(values * scale), method, 99.99) for scale in (1, 1024))
    assert large == pytest.approx(1024 * small)

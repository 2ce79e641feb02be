import math
import tracemalloc

import numpy as np
import pytest
from support.results import accuracy, agreed

from enginewright.core.params.precisions import Thresholds
from enginewright.data import feeds
from enginewright.measure.agreement import (
    SHARES,
    agreement_of,
    broken_thresholds,
    compare,
    distance,
    metric_of,
    origin_of_loss,
    spread,
)
from enginewright.measure.records import Errors
from enginewright.tasks.choose import task_of

LIMITS = Thresholds(cosine=0.99, relative_error=0.05, agreement=0.95, metric_drop=0.01)
PERFECT = Errors(max_abs=0, mean_abs=0, relative=0, cosine=1, worst_cosine=1, nonfinite=0)


TASK = task_of("classification")


def agreement_between(wanted, got, output=None):
    return agreement_of(task_of("classification", output), wanted, got, LIMITS, "images").share


def spread_of(wanted, got, output=None):
    return spread(wanted, got, task_of("classification", output).leads_kept(wanted, got))


def of_drop(drop):
    return accuracy(1, 1, 1 - drop)["results"][0] if drop is not None else None


def logits(*rows):
    return {"logits": np.array(rows, np.float32)}


def errors(**changes):
    return PERFECT.model_copy(update=changes)


def test_errors_are_those_computed_by_hand():
    """Differences 1, 0 and 0, 2; norms of 3, 4 and 0, 2 make sqrt(29) in all."""
    got = compare(logits([3, 4], [0, 2]), logits([4, 4], [0, 4]))
    assert got.max_abs == 2
    assert got.mean_abs == 0.75
    assert got.relative == pytest.approx(math.sqrt(5) / math.sqrt(29))
    first = (3 * 4 + 4 * 4) / (5 * math.sqrt(32))
    assert got.cosine == pytest.approx((first + 1) / 2)
    assert got.worst_cosine == pytest.approx(first)
    found = agreement_between(logits([3, 4], [0, 2]), logits([4, 4], [0, 4]))
    assert found == 0.5  # 4, 4 ties: the first wins, as everywhere
    assert got.nonfinite == 0


def test_equal_outputs_agree_perfectly():
    some = logits(*np.random.default_rng(0).normal(size=(7, 10)))
    got = compare(some, some)
    assert (got.max_abs, got.mean_abs, got.relative, got.nonfinite) == (0, 0, 0, 0)
    assert agreement_between(some, some) == 1
    assert got.cosine == pytest.approx(1)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 1, 1)])
def test_single_numbers_are_one_vector(shape):
    """The sign of a target near zero may change without harm: by itself, its cosine would be -1."""
    wanted, got = ({"target": np.float32(values).reshape(shape)} for values in ([3, -4, 0.01, 2], [3, -4, -0.01, 2]))
    found = compare(wanted, got)
    assert found.cosine == found.worst_cosine == pytest.approx(1, abs=1e-5)
    assert (found.max_abs, found.mean_abs) == pytest.approx((0.02, 0.005))


@pytest.mark.parametrize(
    ("wanted", "got", "cosine"), [([1, 2], [-1, -2], -1), ([0, 0], [0, 0], 1), ([1, 2], [0, 0], 0), ([0, 0], [1, 2], 0)]
)
def test_opposite_outputs_have_cosine_minus_one_and_only_two_zero_vectors_agree(wanted, got, cosine):
    assert compare(logits(wanted), logits(got)).cosine == pytest.approx(cosine)


def test_nan_and_infinity_are_counted_and_taken_as_zero():
    got = compare(logits([1, 2], [3, 4]), logits([np.nan, 2], [-np.inf, np.inf]))
    assert got.nonfinite == 3
    assert got.max_abs == 4
    assert got.relative == pytest.approx(math.sqrt(1 + 9 + 16) / math.sqrt(30))


def test_every_figure_is_finite_even_if_the_wanted_outputs_are_not():
    """A record with NaN in it cannot be read back, and the report needs it."""
    got = compare(logits([np.nan, 1], [np.inf, 2]), logits([np.nan, 1], [1, 2]))
    assert all(math.isfinite(value) for value in got.model_dump().values())
    assert got.nonfinite == 1


def test_values_too_large_to_be_squared_in_float32_are_compared():
    assert compare(logits([3e30, 0]), logits([0, 3e30])).relative == pytest.approx(math.sqrt(2))


def test_accuracy_is_the_share_of_right_answers():
    labels, places = np.array([1, 0, 0, 1]), np.arange(4)
    assert metric_of(TASK, logits([0, 1], [1, 0], [0, 1], [0, 1]), labels, places) == 0.75
    assert metric_of(TASK, logits([0, 1]), None, places) is None


@pytest.mark.parametrize(
    ("found", "drop", "sentence"),
    [
        (errors(nonfinite=3), 0, "3 outputs are NaN or infinite"),
        (errors(cosine=0.98), 0, "cosine 0.98000 is below 0.99"),
        (errors(relative=0.06), 0, "relative error 6.00e-02 is above 5.00e-02"),
        (PERFECT, 0.02, "accuracy drop 2.00% (1.00% to 3.00%) is above 1.00%"),
        (errors(relative=math.nan), 0, "relative error nan is above 5.00e-02"),
    ],
)
def test_a_broken_threshold_is_a_sentence(found, drop, sentence):
    assert broken_thresholds(found, agreed(1), of_drop(drop), LIMITS) == (sentence,)


def test_too_few_same_answers_break_a_threshold():
    told = ("top-1 agreement 94.00% (93.00% to 95.00%) is below 95.00%",)
    assert broken_thresholds(PERFECT, agreed(0.94), None, LIMITS) == told


def test_what_other_samples_may_keep_is_not_broken_where_one_must_be_sure():
    found = agreed(0.94), of_drop(0.02)
    few = [figure.model_copy(update={"needed": 2000}) for figure in found]
    assert len(broken_thresholds(PERFECT, *found, LIMITS, must_be_sure=True)) == 2
    assert broken_thresholds(errors(cosine=0.98), *few, LIMITS, must_be_sure=True) == ("cosine 0.98000 is below 0.99",)
    assert len(broken_thresholds(PERFECT, *few, LIMITS)) == 2
    none = of_drop(math.nan).model_copy(update={"needed": None})
    assert len(broken_thresholds(PERFECT, None, none, LIMITS, must_be_sure=True)) == 1


def test_figures_at_their_thresholds_break_none():
    at_thresholds, dropped = errors(cosine=0.99, relative=0.05), of_drop(0).model_copy(update={"drop": 0.01})
    assert broken_thresholds(at_thresholds, agreed(0.95), dropped, LIMITS) == ()


def test_an_accuracy_that_was_not_measured_breaks_nothing():
    strict = LIMITS.model_copy(update={"metric_drop": -1})
    assert broken_thresholds(PERFECT, None, of_drop(0), strict) == (
        "accuracy drop 0.00% (-1.00% to 1.00%) is above -100.00%",
    )
    assert broken_thresholds(PERFECT, None, None, strict) == ()


def test_all_broken_thresholds_are_listed():
    bad = errors(cosine=0, relative=2, nonfinite=1)
    assert len(broken_thresholds(bad, agreed(0), of_drop(1), LIMITS)) == 5


@pytest.mark.parametrize(
    ("graph", "engine", "origin"),
    [
        (errors(relative=1e-2), errors(relative=1e-6), "precision"),
        (errors(relative=1e-6), errors(relative=1e-2), "compiler"),
        (PERFECT, PERFECT, "precision"),
        (errors(relative=1e-2), errors(relative=1e-6, nonfinite=1), "compiler"),
        (errors(relative=0.1, nonfinite=4), errors(relative=0.5), "precision"),
        (errors(relative=0.1, nonfinite=4), errors(relative=0.0, nonfinite=4), "precision"),
    ],
)
def test_a_loss_comes_from_the_side_with_the_larger_error(graph, engine, origin):
    assert origin_of_loss(graph, engine) == origin


def test_a_graph_that_overflows_is_not_blamed_on_the_compiler():
    pytorch, overflown = logits([1, 2], [3, 4]), logits([1, 2], [np.inf, np.nan])
    assert origin_of_loss(compare(pytorch, overflown), compare(overflown, overflown)) == "precision"


def test_equal_outputs_have_no_error_and_keep_their_margins():
    some = logits(*np.random.default_rng(0).normal(size=(7, 10)))
    got = spread_of(some, some)
    assert got.shares == SHARES
    assert set(got.relative_error) == {0}
    assert set(got.margin_kept) == {1}


def test_the_spread_has_single_images_in_order_of_their_error():
    """The errors are 0, 1 of 5 and 2.5 of 5; the second image has twice its margin, the last half of it."""
    wanted, got = logits([3, 4], [4, 3], [0, 5]), logits([3, 4], [5, 3], [0, 2.5])
    found = spread_of(wanted, got)
    assert (found.relative_error[0], found.relative_error[-1]) == (0, 0.5)
    assert found.relative_error[SHARES.index(0.5)] == 0.2
    assert (found.margin_kept[0], found.margin_kept[SHARES.index(0.5)], found.margin_kept[-1]) == (0.5, 1, 2)
    assert list(found.relative_error) == sorted(found.relative_error)


def test_another_answer_has_a_margin_below_zero():
    """The class led by 1, and now another class leads by 2."""
    assert spread_of(logits([3, 4, 0]), logits([6, 4, 0])).margin_kept[0] == -2


def test_one_class_has_no_margin_and_nonfinite_outputs_still_have_a_spread():
    assert spread(logits([3], [4]), logits([3], [5])).margin_kept == ()
    broken = spread_of(logits([1, 2], [3, 4]), logits([np.nan, 2], [-np.inf, np.inf]))
    assert np.isfinite([*broken.relative_error, *broken.margin_kept]).all()


def test_the_worst_of_several_outputs_counts_for_each_figure():
    wanted = logits([3, 4], [4, 3]) | {"map": np.ones((2, 3, 4), np.float32)}
    got = logits([3, 5], [4, 3]) | {"map": np.ones((2, 3, 4), np.float32) * 1.1}
    scores = compare(logits([3, 4], [4, 3]), logits([3, 5], [4, 3]))
    maps = compare({"map": wanted["map"]}, {"map": got["map"]})
    both = compare(wanted, got)
    assert both.max_abs == scores.max_abs == 1
    assert both.relative == max(scores.relative, maps.relative)
    assert both.cosine == min(scores.cosine, maps.cosine)
    assert both.worst_cosine == min(scores.worst_cosine, maps.worst_cosine) < 1 - 1e-3
    assert agreement_between(wanted, got) == 1
    assert compare(wanted, got | {"map": np.full((2, 3, 4), np.nan)}).nonfinite == 24


def test_without_an_output_of_classes_there_is_neither_agreement_nor_accuracy():
    maps = {"map": np.ones((2, 3, 4), np.float32)}
    assert agreement_of(TASK, maps, maps, LIMITS, "images") is None
    assert metric_of(TASK, maps, np.array([0, 1]), np.arange(2)) is None


def test_as_many_samples_are_needed_as_show_the_share_with_none_apart():
    scores = {"scores": np.eye(10)}
    needed = agreement_of(TASK, scores, scores, LIMITS, "images").needed
    assert LIMITS.agreement ** (needed - 1) > 0.025 >= LIMITS.agreement**needed  # the exact binomial interval's end


def test_agreement_accuracy_and_margins_are_those_of_the_output_with_scores():
    features, right, wrong = np.eye(2, 5), np.eye(2, 3), np.eye(2, 3)[::-1]
    wanted, got = {"features": features, "scores": right}, {"features": features, "scores": wrong}
    task, labels = task_of("classification", None, "abc"), np.array([0, 1])
    assert [metric_of(task, outputs, labels, np.arange(2)) for outputs in (wanted, got)] == [1, 0]
    assert agreement_between(wanted, got, "scores") == 0
    assert max(spread_of(wanted, got, "scores").margin_kept) < 0


def test_if_scores_were_guessed_by_their_shape_the_sentence_says_what_to_do():
    doubt = task_of("classification").doubt({"boxes": (2, 4)})
    told = "top-1 agreement 50.00% (49.00% to 51.00%) is below 95.00%"
    assert broken_thresholds(PERFECT, agreed(0.5), None, LIMITS, doubt) == (
        f"{told}, if boxes holds a score per class: else set model.scores",
    )
    for output, names in (("boxes", ()), (None, "abcd")):
        assert not task_of("classification", output, names).doubt({"boxes": (2, 4)})


@pytest.mark.parametrize("numbers", [1, 12, 25, 10**6])
def test_the_size_of_a_block_does_not_change_the_figures(numbers, monkeypatch):
    rng = np.random.default_rng(0)
    wanted = {"scores": rng.normal(size=(7, 4)), "masks": rng.normal(size=(7, 2, 3))}
    got = {name: values + 0.1 * rng.normal(size=values.shape) for name, values in wanted.items()}
    got["masks"][5, 1, 1] = np.nan
    whole = compare(wanted, got).model_dump(), spread_of(wanted, got, "scores")
    monkeypatch.setattr(feeds, "MOST_NUMBERS_IN_A_BLOCK", numbers)
    assert compare(wanted, got).model_dump() == pytest.approx(whole[0])
    assert spread_of(wanted, got, "scores") == whole[1]
    assert whole[0]["nonfinite"] == 1


def test_a_comparison_has_only_a_part_of_the_outputs_in_memory(tmp_path, monkeypatch):
    """A mask may take megabytes, and there may be thousands of them."""
    monkeypatch.setattr(feeds, "MOST_NUMBERS_IN_A_BLOCK", 10_000)
    shape = (400, 10_000)
    wanted, got = (np.lib.format.open_memmap(tmp_path / name, "w+", np.float32, shape) for name in ("a.npy", "b.npy"))
    wanted[:], got[:] = 1.0, 1.01
    tracemalloc.start()
    assert compare({"mask": wanted}, {"mask": got}).relative == pytest.approx(0.01, rel=1e-3)
    spread({"mask": wanted}, {"mask": got})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < wanted.nbytes / 10


@pytest.mark.parametrize(
    ("expected", "got", "far"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0),
        ([3.0, 4.0], [3.0, 4.5], 0.1),
        ([3.0, 4.0], [3.0, np.nan], np.inf),
        ([3.0, np.nan], [3.0, np.nan], 0),  # as is meant
        ([3.0, 4.0], [3.0], np.inf),
    ],
)
def test_what_is_no_number_and_of_another_shape_is_infinitely_far(expected, got, far):
    outputs = ({"a": np.zeros((1, 1)), "b": np.array([values])} for values in (expected, got))
    assert distance(*outputs) == pytest.approx(far)

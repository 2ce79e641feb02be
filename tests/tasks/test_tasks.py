"""Each task by itself: the output that it reads, what does not fit it, and its metrics against those of others."""

import re

import numpy as np
import pytest
from PIL import Image
from scipy.stats import spearmanr
from sklearn.metrics import jaccard_score, ndcg_score, r2_score, root_mean_squared_error

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import Preprocessing
from enginewright.data import feeds
from enginewright.tasks.choose import misfit_of, task_of

RNG = np.random.default_rng(0)
EVERYTHING = np.arange(40)
MASKS = np.zeros((3, 8, 8), np.uint8)


def measured(task, outputs, truth, places=EVERYTHING):
    statistics = task.measure(outputs, truth, places)
    return {metric.name: metric.over(each) for metric, each in zip(task.metrics, statistics, strict=False)}


def test_r2_and_rmse_are_those_of_scikit_learn():
    known, found = RNG.normal(5, 2, (40, 3)), RNG.normal(5, 2, (40, 3))
    assert measured(task_of("regression"), {"y": found}, known) == {
        "R²": pytest.approx(r2_score(known, found)),
        "RMSE": pytest.approx(np.sqrt(np.mean((known - found) ** 2))),
    }
    single = measured(task_of("regression"), {"y": found[:, 0]}, known[:, :1])
    assert single["RMSE"] == pytest.approx(root_mean_squared_error(known[:, 0], found[:, 0]))


@pytest.mark.parametrize("numbers", [1, 10**7])
def test_miou_is_the_mean_jaccard_index_of_the_pixels_that_count(numbers, monkeypatch):
    monkeypatch.setattr(feeds, "MOST_NUMBERS_IN_A_BLOCK", numbers)
    scores, masks = (
        RNG.normal(size=(40, 4, 6, 5)),
        RNG.integers(0, 3, (40, 6, 5)).astype(np.uint8),
    )  # nothing of class 3
    masks[:, 0] = 255
    answers = np.where(scores.argmax(1) == 3, 2, scores.argmax(1))
    scores[:, 3] = -9
    counted = masks != 255
    answers = scores.argmax(1)
    wanted = jaccard_score(masks[counted], answers[counted], average="macro")
    assert measured(task_of("segmentation"), {"out": scores}, masks) == {"mIoU": pytest.approx(wanted)}
    enlarged = masks.repeat(2, axis=1).repeat(3, axis=2)
    assert measured(task_of("segmentation"), {"out": scores}, enlarged) == {"mIoU": pytest.approx(wanted)}
    task = task_of("segmentation")
    assert task.agree({"out": scores}, {"out": scores[:, ::-1]}).max() == 0
    assert task.agree({"out": scores}, {"out": 2 * scores}).tolist() == [1] * 40


def test_spearman_is_that_of_scipy_also_with_ties_and_for_sets_drawn_anew():
    vectors, scores = RNG.normal(size=(40, 8)), RNG.integers(0, 4, 20).astype(float)
    task = task_of("embedding")
    (statistics,) = task.measure({"v": vectors}, scores, EVERYTHING)
    lengths = np.linalg.norm(vectors, axis=1)
    cosines = (vectors[::2] * vectors[1::2]).sum(1) / lengths[::2] / lengths[1::2]
    assert measured(task, {"v": vectors}, scores)["Spearman"] == pytest.approx(spearmanr(cosines, scores).statistic)
    drawn = RNG.integers(0, 20, 20)
    found = task.metrics[0].of(statistics, np.bincount(drawn, minlength=20)[np.newaxis].astype(float))
    assert found[0] == pytest.approx(spearmanr(cosines[drawn], scores[drawn]).statistic)
    broken_pair = np.array([1, 2, 3, 4, 5])  # of which 2 and 3, 4 and 5 are pairs
    (some,) = task.measure({"v": vectors[1:6]}, scores, broken_pair)
    assert some[:, 1].tolist() == scores[1:3].tolist()


def test_only_the_order_of_scores_is_ranked():
    task, scores, targets = task_of("ranking"), RNG.normal(size=(40, 1)), RNG.integers(0, 3, (40, 1)).astype(float)
    known = np.column_stack([targets, np.zeros(40)])  # all answer one question
    assert measured(task, {"y": scores}, known) == {"Spearman": pytest.approx(spearmanr(scores, targets).statistic)}
    assert measured(task, {"y": np.exp(scores[:, 0])}, known) == measured(task, {"y": scores}, known)
    assert task.agree({"y": scores}, {"y": np.exp(scores)}).tolist() == [1] * 40
    assert task.agree({"y": scores}, {"y": -scores}).tolist() == [0] * 40
    first = np.array([0.0, 1, 2, 2 + 1e-6])  # of which the last two are as good
    assert task.agree({"y": first}, {"y": np.array([1.0, 0, 3, 2])}) == pytest.approx([2 / 3, 2 / 3, 1, 1])
    assert next(task.show({"y": scores}, 3)).fields == {"score": pytest.approx(scores[0, 0], rel=1e-6)}


def test_answers_are_ranked_among_those_to_their_question():
    """Questions 0 to 3 have nine answers, of which those to the last are all right; four have one answer alone."""
    questions = np.append(np.repeat(np.arange(4), 9), [5, 6, 7, 8])
    scores, targets = RNG.normal(size=40), RNG.integers(0, 3, 40).astype(float)
    targets[27:36] = 2
    task, known = task_of("ranking"), np.column_stack([targets, questions])
    told = [slice(start, start + 9) for start in (0, 9, 18)]
    assert measured(task, {"y": scores}, known) == {
        "Spearman": pytest.approx(np.mean([spearmanr(scores[each], targets[each]).statistic for each in told])),
        "nDCG@10": pytest.approx(np.mean([ndcg_score([targets[each]], [scores[each]], k=10) for each in told])),
    }
    ties = {"y": np.zeros(40)}
    assert measured(task, ties, known)["nDCG@10"] == pytest.approx(
        np.mean([ndcg_score([targets[each]], [np.zeros(9)], k=10) for each in told])
    )
    moved = scores + np.where(questions > 4, 0, 10 * questions)  # which no answer to the same question notices
    knowing = task.knowing(known, EVERYTHING)
    assert knowing.agree({"y": scores}, {"y": moved}).tolist() == [1] * 40
    assert task.agree({"y": scores}, {"y": moved}).min() < 1
    assert knowing.agree({"y": scores}, {"y": -scores}).tolist() == [0] * 40
    assert (len(set(knowing.together.tolist())), knowing.in_pairs) == (8, False)
    one_question = task.knowing(np.column_stack([targets, 0 * targets]), EVERYTHING)
    assert (one_question.together, one_question.in_pairs) == (None, True)
    best = int(scores[:9].argmax())
    told = knowing.beside({"y": scores}, {"y": -scores}, best, str)
    assert [each.partition(", ")[2] for each in told] == ["place 1 of 9", "place 9 of 9"]
    assert task.measure({"y": scores}, np.column_stack([targets * np.nan, questions]), EVERYTHING) == []


@pytest.mark.parametrize(
    ("mode", "unseen"),
    [("stretch", 0), ("pad", 0), ("shorter_side", 0.5)],
)
def test_the_classes_of_an_image_lie_where_the_model_saw_them(mode, unseen):
    how = Preprocessing(
        resize=32, crop=32, resize_mode=mode, interpolation="bilinear", mean=(0, 0, 0), std=(1, 1, 1)
    )  # of an image twice as wide as high
    scores = np.zeros((1, 2, 16, 16))
    scores[:, 1, :, 8:] = 1
    task = task_of("segmentation", None, ("left", "right"))
    shown = task.in_image(next(task.show({"out": scores}, 2)), how, (80, 40))
    assert shown.areas.shape == (40, 80)
    assert (shown.areas == -1).mean() == unseen
    assert (set(shown.areas[:, 38].tolist()), set(shown.areas[:, 41].tolist())) == ({0}, {1})
    drawn = np.asarray(task.draw(Image.new("RGB", (80, 40), "black"), shown))[-40:]
    assert drawn[5, 0].any() == (not unseen)
    assert drawn[5, 38].tolist() != drawn[5, 41].tolist()


def test_the_nearest_texts_are_told_with_both_cosines():
    task, words = task_of("embedding"), ["zero", "one", "two"]
    wanted, got = {"v": np.array([[1, 0], [1, 0.1], [1, 1]])}, {"v": np.array([[1, 0], [0, 1], [1, 1]])}
    told = task.beside(wanted, got, 0, words.__getitem__)
    assert told == (
        "nearest text, cosine 0.9950 (by the engine 0.0000): one",
        "nearest text, cosine 0.7071 (by the engine 0.7071): two",
    )


def test_neighbours_are_compared_without_the_sample_itself():
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]])
    task = task_of("embedding")
    assert task.agree({"v": vectors}, {"v": 7 * vectors}).tolist() == [1] * 4
    many = RNG.normal(size=(300, 16))
    shares = task.agree({"v": many}, {"v": many + 0.3 * RNG.normal(size=many.shape)})
    assert 0.2 < shares.mean() < 0.9


FITS = "would fit task: classification or embedding or regression"
OUT, BOTH = {"out": (2, 3, 8, 8)}, {"out": (2, 3, 8, 8), "aux": (2, 3, 8, 8)}


@pytest.mark.parametrize(
    ("task", "output", "shapes", "truth", "told"),
    [
        ("segmentation", None, {"logits": (2, 10)}, None, f"task: no output has a score for each pixel .* {FITS}"),
        ("segmentation", None, BOTH, None, "model.scores: outputs out, aux may each be the one .*: name it"),
        ("segmentation", "out", BOTH, MASKS, None),
        ("segmentation", None, OUT, MASKS + 3, "a mask has the class 3, and output out has classes 0 to 2"),
        ("segmentation", None, {"out": (2, 3, 5, 8)}, MASKS, "8 by 8 pixels, which is no multiple of output out"),
        ("regression", None, {"y": (2, 3)}, np.zeros((9, 2)), "2 targets for each sample, and output y has 3 numbers"),
        ("regression", None, {"y": (2, 3, 3)}, None, "task: no output has a number for each target"),
        ("ranking", None, {"y": (2, 3)}, None, "task: no output has one score for each sample"),
        ("ranking", None, {"y": (2, 1)}, np.zeros((9, 3)), "2 targets for each sample, and what is ranked has one"),
        ("regression", "x", {"y": (2, 3)}, None, "model.scores: 'x' is no output with a number for each target"),
        ("embedding", None, {"all": (2, 7, 8)}, None, "task: no output has a vector for each sample"),
        ("embedding", "none", {"all": (2, 7, 8)}, None, None),
    ],
)
def test_outputs_that_do_not_fit_the_task_are_refused_in_a_sentence(task, output, shapes, truth, told):
    found = misfit_of(task_of(task, output), shapes, truth, ())
    assert found is None if told is None else re.search(told, found)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere:Task", "task: nowhere cannot be imported: No module named 'nowhere'"),
        (
            "json:decode",
            "task: json has no class 'decode' derived from enginewright.tasks.task.Task; did you mean 'decoder'?",
        ),
        ("enginewright.tasks.task:Metric", "task: enginewright.tasks.task has no class 'Metric' derived from"),
    ],
)
def test_a_task_that_cannot_be_used_is_named(name, told):
    with pytest.raises(EnginewrightError) as caught:
        task_of(name)
    assert str(caught.value).startswith(told)

import numpy as np
import pytest

from enginewright.tasks.choose import task_of
from enginewright.tasks.classification import probabilities_of


@pytest.mark.parametrize(
    ("shapes", "classes", "asked", "found"),
    [
        ({"logits": (2, 10)}, 0, None, "logits"),
        ({"features": (2, 64), "scores": (2, 10)}, 10, None, "scores"),
        ({"centre": (2, 2), "scores": (2, 2)}, 2, None, None),  # as many columns as classes by chance
        ({"centre": (2, 2), "scores": (2, 2)}, 2, "scores", "scores"),
        ({"features": (2, 64), "scores": (2, 10)}, 0, None, None),  # boxes and scores look alike
        ({"features": (2, 64), "scores": (2, 10)}, 0, "scores", "scores"),
        ({"features": (2, 64), "scores": (2, 10)}, 10, "features", None),
        ({"scores": (2, 10), "map": (2, 10, 8, 8), "odds": (2, 1)}, 0, None, "scores"),
        ({"boxes": (2, 4)}, 0, "none", None),
        ({"scores": (2, 10)}, 10, "none", None),
        ({"scores": (2, 10)}, 9, None, None),
        ({"odds": (2, 1)}, 1, None, None),
        ({"pieces": ("batch", "height//8")}, 0, None, None),
        ({"scores": ("batch", 10)}, 10, None, "scores"),
        ({}, 10, None, None),
    ],
)
def test_the_scores_are_the_output_that_is_asked_for_or_the_only_one_of_their_shape(shapes, classes, asked, found):
    assert task_of("classification", asked, [""] * classes).reads(shapes) == found


def shown(scores, names, top):
    (one,) = task_of("classification", None, names).show({"logits": np.array([scores], np.float32)}, top)
    return [(guess["class"], guess["index"], guess["probability"]) for guess in one.fields["top"]]


def test_a_model_that_ends_in_a_softmax_gives_its_probabilities_itself():
    assert shown([0.1, 0.7, 0.2], "abc", 2) == [("b", 1, 0.7), ("c", 2, 0.2)]
    assert shown([0.1, 0.7, 0.3], "abc", 1)[0][2] < 0.5, "these are logits"


def test_probabilities_of_huge_scores_do_not_overflow():
    assert shown([1e4, -1e4, 1e4], (), 3) == [("class 0", 0, 0.5), ("class 2", 2, 0.5), ("class 1", 1, 0.0)]
    assert probabilities_of(np.array([1e4, -1e4])).tolist() == [1, 0]


def test_the_best_five_are_measured_where_there_are_many_classes():
    """The label is the best, the fifth, and the sixth of 30 scores."""
    scores = np.tile(np.arange(30.0), (3, 1))
    many = task_of("classification", None, [""] * 30)
    statistics = many.measure({"logits": scores}, np.array([29, 25, 24]), np.arange(3))
    found = {metric.name: metric.over(each) for metric, each in zip(many.metrics, statistics, strict=True)}
    assert found == {"accuracy": pytest.approx(1 / 3), "top-5 accuracy": pytest.approx(2 / 3)}
    assert [metric.name for metric in task_of("classification", None, [""] * 10).metrics] == ["accuracy"]

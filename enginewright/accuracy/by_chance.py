"""Tell whether the source model knows the samples at all. One with other weights, another order of classes, or another
tokenizer answers as well for any other sample, and an engine that agrees with it proves nothing."""

import numpy as np
from numpy.typing import NDArray

from enginewright.accuracy.results import metric_of
from enginewright.data.feeds import Outputs
from enginewright.tasks.task import Task, Truth

SHUFFLES = 19  # so that one in 20 models that guess is taken for one that knows
FEW, FAR = 3, 5.0  # after so many, one that is so many times their spread better than all of them knows
MOST_SAMPLES = 512


def answers_by_chance(task: Task, outputs: Outputs, truth: Truth | None) -> bool:
    """Tell whether the first metric is no better than that of the same answers, given to other samples."""
    places = np.arange(min(MOST_SAMPLES, len(next(iter(outputs.values())))))

    def measured(order: NDArray[np.int64]) -> float | None:
        return metric_of(task, {name: values[order] for name, values in outputs.items()}, truth, places)

    if truth is None or (own := measured(places)) is None:
        return False
    random, sign = np.random.default_rng(0), 1 if task.metrics[0].higher_is_better else -1
    others: list[float] = []
    for _ in range(SHUFFLES):
        others.append(sign * (measured(random.permutation(places)) or 0.0))
        lead = sign * own - max(others)
        if lead < 0:
            return True
        if len(others) >= FEW and lead > FAR * (max(others) - min(others)):
            return False
    is_the_same_for_all = lead == 0 and len({np.asarray(truth[place]).tobytes() for place in places}) > 1
    return bool(is_the_same_for_all)

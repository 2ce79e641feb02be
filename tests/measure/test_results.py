"""What a task measures of PyTorch, the graph and the engine."""

import numpy as np
import pytest

from enginewright.core.params.precisions import Thresholds
from enginewright.measure.agreement import measure
from enginewright.tasks.choose import task_of

LIMITS = Thresholds(cosine=0, relative_error=1, agreement=0, metric_drop=0.1)


def test_a_drop_is_positive_where_the_engine_is_worse_whichever_way_the_metric_goes():
    truth = np.random.default_rng(0).normal(0, 1, (64, 1))
    outputs = [{"y": truth + error} for error in (0.1, 0.2, 0.4)]
    r2, rmse = measure(task_of("regression"), outputs, truth, LIMITS)
    assert (rmse.reference, rmse.graph, rmse.engine) == (pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.4))
    assert (rmse.drop, r2.drop) == (pytest.approx(0.3), pytest.approx(0.15 / truth.var()))
    for result in (r2, rmse):
        assert result.interval.low <= result.drop <= result.interval.high

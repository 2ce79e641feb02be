"""Measure how well the model does its task in three forms: PyTorch, the graph, and the engine."""

import numpy as np

from enginewright.accuracy.certainty import samples_needed
from enginewright.accuracy.intervals import agreement_at, drop_at
from enginewright.accuracy.records import Agreement, Interval, Result
from enginewright.core.params.precisions import Thresholds
from enginewright.data.feeds import Outputs
from enginewright.tasks.task import Task, Truth


def measure(
    task: Task, outputs: tuple[Outputs, Outputs, Outputs], truth: Truth | None, limits: Thresholds
) -> tuple[Result, ...]:
    """Return the result of each metric; `outputs` are those of PyTorch, of the graph and of the engine. The first
    metric has a limit."""
    if truth is None:
        return ()
    everything = np.arange(len(next(iter(outputs[0].values()))))
    statistics = [task.measure(each, truth, everything) for each in outputs]
    found: list[Result] = []
    for metric, *of_metric in zip(task.metrics, *statistics, strict=False):  # outputs without answers have none
        reference, graph, engine = (metric.over(each) for each in of_metric)
        interval_at, samples = drop_at(metric, of_metric[0], of_metric[2]), len(of_metric[0])
        result = Result(
            name=metric.name,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
            reference=reference,
            graph=graph,
            engine=engine,
            drop=reference - engine if metric.higher_is_better else engine - reference,
            interval=interval_at(samples),
            samples=samples,
            needed=None if found else samples_needed(interval_at, limits.metric_drop, samples),
        )
        found.append(result)
    return tuple(found)


def metric_of(task: Task, outputs: Outputs, truth: Truth | None, places: np.ndarray) -> float | None:
    """Return the task's first metric over some of the samples, or None if it cannot be measured."""
    statistics = [] if truth is None else task.measure(outputs, truth, places)
    return task.metrics[0].over(statistics[0]) if statistics else None


def agreement_of(
    task: Task, wanted: Outputs, got: Outputs, limits: Thresholds, kind: str = "images"
) -> Agreement | None:
    shares = task.agree(wanted, got)
    if shares is None or task.agreement is None:
        return None
    interval_at, samples = agreement_at(shares, task.together, task.in_pairs), len(shares)

    def loss_at(total: int) -> Interval:
        same = interval_at(total)
        return Interval(low=1 - same.high, high=1 - same.low)

    return Agreement(
        name=task.agreement,
        share=float(shares.mean()),
        interval=interval_at(samples),
        among=f"{task.answers}{samples} {kind}",
        samples=samples,
        needed=samples_needed(loss_at, 1 - limits.agreement, samples),
    )

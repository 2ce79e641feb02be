"""Measure how well the model does its task in three forms: PyTorch, the graph, and the engine."""

import numpy as np

from enginery.accuracy.intervals import interval_of_agreement, interval_of_drop
from enginery.accuracy.records import Agreement, Result
from enginery.data.feeds import Outputs
from enginery.tasks.task import Task, Truth


def measure(task: Task, outputs: tuple[Outputs, Outputs, Outputs], truth: Truth | None) -> tuple[Result, ...]:
    """Return the result of each metric; `outputs` are those of PyTorch, of the graph and of the engine."""
    if truth is None:
        return ()
    everything = np.arange(len(next(iter(outputs[0].values()))))
    statistics = [task.measure(each, truth, everything) for each in outputs]
    found = []
    for metric, *of_metric in zip(task.metrics, *statistics, strict=False):  # outputs without answers have none
        reference, graph, engine = (metric.over(each) for each in of_metric)
        result = Result(
            name=metric.name,
            unit=metric.unit,
            higher_is_better=metric.higher_is_better,
            reference=reference,
            graph=graph,
            engine=engine,
            drop=reference - engine if metric.higher_is_better else engine - reference,
            interval=interval_of_drop(metric, of_metric[0], of_metric[2]),
        )
        found.append(result)
    return tuple(found)


def metric_of(task: Task, outputs: Outputs, truth: Truth | None, places: np.ndarray) -> float | None:
    """Return the task's first metric over some of the samples, or None if it cannot be measured."""
    statistics = [] if truth is None else task.measure(outputs, truth, places)
    return task.metrics[0].over(statistics[0]) if statistics else None


def agreement_of(task: Task, wanted: Outputs, got: Outputs) -> Agreement | None:
    shares = task.agree(wanted, got)
    if shares is None or task.agreement is None:
        return None
    among, interval = f"{task.answers}{len(shares)} images", interval_of_agreement(shares)
    return Agreement(name=task.agreement, share=float(shares.mean()), interval=interval, among=among)

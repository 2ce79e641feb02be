"""Measure how far two sets of outputs differ and how well each does the task, and check that against thresholds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright.core.params.precisions import Thresholds
from enginewright.data.feeds import Outputs, Places, Values, blocks, cosines, errors_of_samples, finite, relative_error
from enginewright.measure.intervals import agreement_at, drop_at, samples_needed
from enginewright.measure.records import Agreement, Errors, Interval, Result, Spread
from enginewright.tasks.task import NONE, Task, Truth

SHARES = (0, 0.01, 0.02, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 1)  # finer where the extremes are


def compare(expected: Outputs, got: Outputs) -> Errors:
    """Return the errors of `got`: for each figure the worst value among the outputs. Here and in `spread`, samples are
    read in blocks, because the outputs may be mapped files that are larger than memory."""
    of_outputs = [_errors(expected[name], got[name]) for name in expected]
    worst: dict[str, Any] = {"cosine": min, "worst_cosine": min, "nonfinite": sum}
    figures = {name: [getattr(each, name) for each in of_outputs] for name in Errors.model_fields}
    return Errors(**{name: worst.get(name, max)(values) for name, values in figures.items()})


def _errors(expected: Values, got: Values) -> Errors:
    """Return the errors of one output, in double precision. NaN and infinity are counted, and then taken as zero."""
    if expected[:1].size == 1:  # a single number has a sign, and no angle: those of all samples are one vector
        expected, got = expected.reshape(1, -1), got.reshape(1, -1)
    parts = []
    for block in blocks(expected):
        exact, found = (finite(each[block]).reshape(len(each[block]), -1) for each in (expected, got))
        difference = np.abs(exact - found)
        norms = np.linalg.norm(difference), np.linalg.norm(exact)
        nonfinite = np.count_nonzero(~np.isfinite(got[block]))
        parts.append((difference.max(), difference.mean(), *norms, cosines(exact, found), nonfinite))
    largest, means, differences, sizes, angles, nonfinites = zip(*parts, strict=True)
    angle = np.concatenate(angles)
    return Errors(
        max_abs=max(largest),
        mean_abs=float(np.dot(means, [len(each) / len(expected) for each in angles])),
        relative=relative_error(differences, sizes),
        cosine=float(angle.mean()),
        worst_cosine=float(angle.min()),
        nonfinite=sum(nonfinites),
    )


def distance(expected: Outputs, got: Outputs) -> float:
    """Return the relative error: infinite for other shapes, and for what is no number where one is expected."""
    if any(got[name].shape != values.shape for name, values in expected.items()):
        return math.inf
    found, meant = compare(expected, got), sum(np.count_nonzero(~np.isfinite(each)) for each in expected.values())
    return math.inf if found.nonfinite > meant else found.relative


def spread(expected: Outputs, got: Outputs, leads_kept: NDArray[np.float64] = NONE) -> Spread:
    """Return how much single samples differ, in four digits because it is only drawn."""

    def quantiles(values: NDArray[np.float64]) -> tuple[float, ...]:
        return tuple(float(f"{value:.4g}") for value in np.quantile(values, SHARES)) if values.size else ()

    errors = quantiles(errors_of_samples(expected, got))
    return Spread(shares=SHARES, relative_error=errors, margin_kept=quantiles(leads_kept))


def broken_thresholds(
    errors: Errors,
    agreement: Agreement | None,
    result: Result | None,
    limits: Thresholds,
    doubt: str = "",
    must_be_sure: bool = False,
) -> tuple[str, ...]:
    """Return a sentence for each broken threshold. `doubt` says what a low agreement could come from besides. If one
    `must_be_sure`, a threshold that other samples may keep is not broken: they are too few to say."""
    broken = []
    if errors.nonfinite:
        broken.append(f"{errors.nonfinite} outputs are NaN or infinite")
    if not errors.cosine >= limits.cosine:
        broken.append(f"cosine {errors.cosine:.5f} is below {limits.cosine}")
    if not errors.relative <= limits.relative_error:
        broken.append(f"relative error {errors.relative:.2e} is above {limits.relative_error:.2e}")
    if agreement and not agreement.share >= limits.agreement and (agreement.is_sure or not must_be_sure):
        broken.append(f"{agreement.name} {agreement.share_with_interval} is below {limits.agreement:.2%}{doubt}")
    if result and not result.drop <= limits.metric_drop and (result.is_sure or not must_be_sure):
        limit = result.written(limits.metric_drop)
        broken.append(f"{result.name} drop {result.drop_with_interval} is above {limit}")
    return tuple(broken)


def origin_of_loss(graph_against_pytorch: Errors, engine_against_graph: Errors) -> str:
    """Tell whether the larger part of the error comes from the precision or from the compiler."""
    if engine_against_graph.nonfinite != graph_against_pytorch.nonfinite:
        return "compiler" if engine_against_graph.nonfinite > graph_against_pytorch.nonfinite else "precision"
    return "precision" if graph_against_pytorch.relative >= engine_against_graph.relative else "compiler"


def measure(
    task: Task, outputs: tuple[Outputs, Outputs, Outputs], truth: Truth | None, limits: Thresholds
) -> tuple[Result, ...]:
    """Measure how well the model does its task: as PyTorch, as the graph and as the engine, whose `outputs` these are.
    The first metric has a limit."""
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


def agreement_of(task: Task, expected: Outputs, got: Outputs, limits: Thresholds, kind: str) -> Agreement | None:
    shares = task.agree(expected, got)
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


class Lost(NamedTuple):
    same: NDArray[np.float64] | None  # by sample; None if answers of the task cannot be the same
    drop: float | None  # of the metric; None if it cannot be measured


@dataclass(frozen=True)
class Judge:
    """Says what a task makes of outputs for some samples of a set, by their places in it."""

    task: Task
    truth: Truth | None
    limits: Thresholds

    def comparable(self, places: Places, expected: Outputs, got: Outputs) -> tuple[Outputs, Outputs]:
        return self.task.knowing(self.truth, places).comparable(expected, got)

    def lost(self, places: Places, expected: Outputs, found: Iterable[Outputs]) -> list[Lost]:
        task, exact = self.task.knowing(self.truth, places), metric_of(self.task, expected, self.truth, places)
        better, lost = 1 if self.task.metrics[0].higher_is_better else -1, []
        for outputs in found:
            got = metric_of(self.task, outputs, self.truth, places)
            drop = None if exact is None or got is None else better * (exact - got)
            lost.append(Lost(task.agree(expected, outputs), drop))
        return lost


SHUFFLES = 19  # so that one in 20 models that guess is taken for one that knows
FEW, FAR = 3, 5.0  # after so many, one that is so many times their spread better than all of them knows
MOST_SAMPLES = 512


def answers_by_chance(task: Task, outputs: Outputs, truth: Truth | None) -> bool:
    """Tell whether the first metric is no better than that of the same answers, given to other samples. A model with
    other weights, another order of classes, or another tokenizer answers as well for any of them, and an engine that
    agrees with it proves nothing."""
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
    return bool(lead == 0 and len({np.asarray(truth[place]).tobytes() for place in places}) > 1)

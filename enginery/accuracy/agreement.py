"""Measure how far two sets of outputs differ, and check that against the thresholds of params.yaml."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginery.accuracy.records import Errors, Spread
from enginery.core.params.precisions import Thresholds
from enginery.data.feeds import Outputs

Values = NDArray[Any]
TINY = 1e-12
MOST_NUMBERS_IN_A_BLOCK = 2**21  # several copies of a block in double precision are in memory at once
SHARES = (0, 0.01, 0.02, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 1)  # finer where the extremes are


def accuracy_of(outputs: Outputs, labels: NDArray[np.int64] | None, scores: str | None) -> float | None:
    """Return the share of right answers, or None if there are no labels or no output holds scores."""
    return None if labels is None or scores is None else float(np.mean(outputs[scores].argmax(axis=1) == labels))


def compare(wanted: Outputs, got: Outputs, scores: str | None = None) -> Errors:
    """Return the errors of `got`: for each figure the worst value among the outputs. `scores` names the output with a
    number for each class, if there is one. Here and in `spread`, samples are read in blocks, because the outputs may be
    mapped files that are larger than memory."""
    all_errors = [_errors(wanted[name], got[name]) for name in wanted]
    agreement = np.mean(_top_classes(wanted[scores]) == _top_classes(got[scores])) if scores else None
    return Errors(
        max_abs=max(errors.max_abs for errors in all_errors),
        mean_abs=max(errors.mean_abs for errors in all_errors),
        relative=max(errors.relative for errors in all_errors),
        cosine=min(errors.cosine for errors in all_errors),
        worst_cosine=min(errors.worst_cosine for errors in all_errors),
        top1_agreement=None if agreement is None else float(agreement),
        nonfinite=sum(errors.nonfinite for errors in all_errors),
    )


def _errors(wanted: Values, got: Values) -> Errors:
    """Return the errors of one output, in double precision. NaN and infinity are counted, and then taken as zero."""
    blocks = [_errors_of_block(wanted[block], got[block]) for block in _blocks(wanted)]
    largest, means, differences, sizes, cosines, nonfinite = (list(column) for column in zip(*blocks, strict=True))
    shares, angles = [len(each) / len(wanted) for each in cosines], np.concatenate(cosines)
    return Errors(
        max_abs=max(largest),
        mean_abs=float(np.dot(means, shares)),
        relative=float(np.linalg.norm(differences) / max(float(np.linalg.norm(sizes)), TINY)),
        cosine=float(angles.mean()),
        worst_cosine=float(angles.min()),
        top1_agreement=None,
        nonfinite=sum(nonfinite),
    )


def _errors_of_block(wanted: Values, got: Values) -> tuple[float, float, float, float, NDArray[np.float64], int]:
    """Return largest difference, mean difference, norm of the differences, norm of `wanted`, cosines, nonfinite."""
    exact, finite = (_finite(values).reshape(len(values), -1) for values in (wanted, got))
    difference = np.abs(exact - finite)
    norms = float(np.linalg.norm(difference)), float(np.linalg.norm(exact))
    nonfinite = int(np.count_nonzero(~np.isfinite(got)))
    return float(difference.max()), float(difference.mean()), *norms, _cosines(exact, finite), nonfinite


def _blocks(values: Values) -> list[slice]:
    """Cut the samples into blocks of at least one sample that take a bounded part of memory."""
    samples = max(1, MOST_NUMBERS_IN_A_BLOCK * len(values) // max(values.size, 1))
    return [slice(start, start + samples) for start in range(0, len(values), samples)]


def _top_classes(scores: Values) -> NDArray[np.int64]:
    return np.concatenate([_finite(scores[block]).argmax(axis=1) for block in _blocks(scores)])


def _finite(values: Values) -> NDArray[np.float64]:
    return np.where(np.isfinite(values), values, 0).astype(np.float64)


def spread(wanted: Outputs, got: Outputs, scores: str | None = None) -> Spread:
    """Return how much single samples differ over all outputs together. NaN and infinity are taken as zero."""
    pairs = [(values, got[name]) for name, values in wanted.items()]
    differences = np.linalg.norm([_norms(exact, found) for exact, found in pairs], axis=0)
    sizes = np.linalg.norm([_norms(exact) for exact, _ in pairs], axis=0)
    kept = _margins_kept(wanted[scores], got[scores]) if scores else np.empty(0)
    return Spread(
        shares=SHARES, relative_error=_quantiles(differences / np.maximum(sizes, TINY)), margin_kept=_quantiles(kept)
    )


def _norms(values: Values, minus: Values | None = None) -> NDArray[np.float64]:
    """Return the norm of each sample, or of its difference to the same sample of `minus`."""
    parts = (_finite(values[part]) - (0 if minus is None else _finite(minus[part])) for part in _blocks(values))
    return np.concatenate([np.linalg.norm(part.reshape(len(part), -1), axis=1) for part in parts])


def broken_thresholds(
    errors: Errors, accuracy_drop: float | None, limits: Thresholds, guessed_scores: str | None = None
) -> tuple[str, ...]:
    """Return a sentence for each broken threshold. `guessed_scores` names an output that only looks like scores."""
    broken = []
    if errors.nonfinite:
        broken.append(f"{errors.nonfinite} outputs are NaN or infinite")
    if not errors.cosine >= limits.cosine:
        broken.append(f"cosine {errors.cosine:.5f} is below {limits.cosine}")
    if not errors.relative <= limits.relative_error:
        broken.append(f"relative error {errors.relative:.2e} is above {limits.relative_error:.2e}")
    if errors.top1_agreement is not None and not errors.top1_agreement >= limits.top1_agreement:
        doubt = f", if {guessed_scores} holds a score per class: else set model.scores" if guessed_scores else ""
        broken.append(f"top-1 agreement {errors.top1_agreement:.2%} is below {limits.top1_agreement:.2%}{doubt}")
    if accuracy_drop is not None and not accuracy_drop <= limits.accuracy_drop:
        broken.append(f"accuracy drop {accuracy_drop:.2%} is above {limits.accuracy_drop:.2%}")
    return tuple(broken)


def origin_of_loss(graph_against_pytorch: Errors, engine_against_graph: Errors) -> str:
    """Tell whether the larger part of the error comes from the precision or from the compiler."""
    if engine_against_graph.nonfinite != graph_against_pytorch.nonfinite:
        return "compiler" if engine_against_graph.nonfinite > graph_against_pytorch.nonfinite else "precision"
    return "precision" if graph_against_pytorch.relative >= engine_against_graph.relative else "compiler"


def _cosines(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of each sample. Two zero vectors agree, a zero and a non-zero one do not."""
    norms = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    cosines = (a * b).sum(axis=1) / np.maximum(norms[0] * norms[1], TINY)
    return np.where(np.maximum(*norms) < TINY, 1.0, cosines)


def _margins_kept(wanted: Values, got: Values) -> NDArray[np.float64]:
    """Return for each sample the margin of PyTorch's answer in `got`, as a share of its margin in `wanted`."""
    shares = []
    for block in _blocks(wanted):
        exact, found = _finite(wanted[block]), _finite(got[block])
        answers = exact.argmax(axis=1)
        shares.append(_margins(found, answers) / np.maximum(_margins(exact, answers), TINY))
    return np.concatenate(shares)


def _margins(scores: NDArray[np.float64], answers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return by how much the score of each answer is above the best score of the other classes."""
    others, rows = scores.copy(), np.arange(len(scores))
    others[rows, answers] = -np.inf
    return np.asarray(scores[rows, answers] - others.max(axis=1))


def _quantiles(values: NDArray[np.float64]) -> tuple[float, ...]:
    """Return the quantiles at SHARES, rounded to four digits because they are only drawn."""
    return tuple(float(f"{value:.4g}") for value in np.quantile(values, SHARES)) if values.size else ()

"""How far outputs lie apart, and whether that is acceptable."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginery.accuracy.records import Errors, Spread
from enginery.core.params.precisions import Thresholds
from enginery.data.feeds import Outputs

Values = NDArray[Any]
TINY = 1e-12
MOST_AT_ONCE = 2**21  # numbers of an output, of which several copies in double precision are made
SHARES = (0, 0.01, 0.02, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 1)  # finer where the extremes are


def accuracy_of(outputs: Outputs, labels: NDArray[np.int64] | None, scores: str | None) -> float | None:
    """None without labels, or without an output of scores."""
    return None if labels is None or scores is None else float(np.mean(outputs[scores].argmax(axis=1) == labels))


def compare(wanted: Outputs, got: Outputs, scores: str | None = None) -> Errors:
    """Of several outputs, the worst of each figure. `scores` is the one with a number for each class, if there is.

    Here and in `spread`, samples are taken in blocks: the outputs may be mapped files that are larger than memory.
    """
    all_errors = [_errors(wanted[name], got[name]) for name in wanted]
    agreeing = np.mean(_answers(wanted[scores]) == _answers(got[scores])) if scores else None
    return Errors(
        max_abs=max(errors.max_abs for errors in all_errors),
        mean_abs=max(errors.mean_abs for errors in all_errors),
        relative=max(errors.relative for errors in all_errors),
        cosine=min(errors.cosine for errors in all_errors),
        worst_cosine=min(errors.worst_cosine for errors in all_errors),
        top1_agreement=None if agreeing is None else float(agreeing),
        nonfinite=sum(errors.nonfinite for errors in all_errors),
    )


def _errors(wanted: Values, got: Values) -> Errors:
    """Of one output, in double precision. NaN and infinity count as nonfinite, and then as zero."""
    blocks = [_errors_of_block(wanted[block], got[block]) for block in _blocks(wanted)]
    largest, means, differences, sizes, cosines, nonfinite = (list(column) for column in zip(*blocks, strict=True))
    shares = [len(each) / len(wanted) for each in cosines]
    angles = np.concatenate(cosines)
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
    """The largest and the mean difference, the norms of differences and of `wanted`, cosines, what is not finite."""
    exact, finite = (_finite(values).reshape(len(values), -1) for values in (wanted, got))
    difference = np.abs(exact - finite)
    norms = float(np.linalg.norm(difference)), float(np.linalg.norm(exact))
    nonfinite = int(np.count_nonzero(~np.isfinite(got)))
    return float(difference.max()), float(difference.mean()), *norms, _cosines(exact, finite), nonfinite


def _blocks(values: Values) -> list[slice]:
    """Of samples, so many that they take a bounded part of memory, and one at least."""
    at_once = max(1, MOST_AT_ONCE * len(values) // max(values.size, 1))
    return [slice(start, start + at_once) for start in range(0, len(values), at_once)]


def _answers(scores: Values) -> NDArray[np.int64]:
    return np.concatenate([_finite(scores[block]).argmax(axis=1) for block in _blocks(scores)])


def _finite(values: Values) -> NDArray[np.float64]:
    return np.where(np.isfinite(values), values, 0).astype(np.float64)


def spread(wanted: Outputs, got: Outputs, scores: str | None = None) -> Spread:
    """How single samples differ, over all outputs; the margin is that of the classes. What is not finite is zero."""
    pairs = [(values, got[name]) for name, values in wanted.items()]
    differences = np.linalg.norm([_norms(exact, found) for exact, found in pairs], axis=0)
    sizes = np.linalg.norm([_norms(exact) for exact, _ in pairs], axis=0)
    kept = _leads_kept(wanted[scores], got[scores]) if scores else np.empty(0)
    return Spread(
        shares=SHARES, relative_error=_quantiles(differences / np.maximum(sizes, TINY)), margin_kept=_quantiles(kept)
    )


def _norms(values: Values, less: Values | None = None) -> NDArray[np.float64]:
    """Of each sample, or of what it differs by."""

    def of_block(block: slice) -> NDArray[np.float64]:
        found = _finite(values[block]) if less is None else _finite(values[block]) - _finite(less[block])
        norms: NDArray[np.float64] = np.linalg.norm(found.reshape(len(found), -1), axis=1)
        return norms

    return np.concatenate([of_block(block) for block in _blocks(values)])


def broken_thresholds(
    errors: Errors, accuracy_drop: float | None, limits: Thresholds, taken: str | None = None
) -> tuple[str, ...]:
    """A sentence for each threshold that is broken. What was not measured counts for nothing.

    `taken` is the output that was taken for scores, if nothing but its shape says that it holds any.
    """
    broken = []
    if errors.nonfinite:
        broken.append(f"{errors.nonfinite} outputs are NaN or infinite")
    if not errors.cosine >= limits.cosine:
        broken.append(f"cosine {errors.cosine:.5f} is below {limits.cosine}")
    if not errors.relative <= limits.relative_error:
        broken.append(f"relative error {errors.relative:.2e} is above {limits.relative_error:.2e}")
    if errors.top1_agreement is not None and not errors.top1_agreement >= limits.top1_agreement:
        doubt = f", if {taken} holds a score per class: else set model.scores" if taken else ""
        broken.append(f"top-1 agreement {errors.top1_agreement:.2%} is below {limits.top1_agreement:.2%}{doubt}")
    if accuracy_drop is not None and not accuracy_drop <= limits.accuracy_drop:
        broken.append(f"accuracy drop {accuracy_drop:.2%} is above {limits.accuracy_drop:.2%}")
    return tuple(broken)


def origin_of_loss(graph_against_pytorch: Errors, engine_against_graph: Errors) -> str:
    """Whose the larger part of the error is: the precision's, or the compiler's."""
    if engine_against_graph.nonfinite != graph_against_pytorch.nonfinite:
        return "compiler" if engine_against_graph.nonfinite > graph_against_pytorch.nonfinite else "precision"
    return "precision" if graph_against_pytorch.relative >= engine_against_graph.relative else "compiler"


def _cosines(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Per sample; two zero vectors agree, a zero and a non-zero one do not."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    both_zero = (np.linalg.norm(a, axis=1) < TINY) & (np.linalg.norm(b, axis=1) < TINY)
    cosines: NDArray[np.float64] = np.where(both_zero, 1.0, (a * b).sum(axis=1) / np.maximum(norms, TINY))
    return cosines


def _leads_kept(wanted: Values, got: Values) -> NDArray[np.float64]:
    return np.concatenate([_margins_kept(_finite(wanted[block]), _finite(got[block])) for block in _blocks(wanted)])


def _margins_kept(exact: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.float64]:
    return _margins(found, exact) / np.maximum(_margins(exact, exact), TINY)


def _margins(logits: NDArray[np.float64], answers: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much the class that `answers` puts first leads over the best of the others."""
    chosen = answers.argmax(axis=1)[:, None]
    others = logits.copy()
    np.put_along_axis(others, chosen, -np.inf, axis=1)
    margins: NDArray[np.float64] = np.take_along_axis(logits, chosen, axis=1)[:, 0] - others.max(axis=1)
    return margins


def _quantiles(values: NDArray[np.float64]) -> tuple[float, ...]:
    """To four digits: they are for the eye."""
    return tuple(float(f"{value:.4g}") for value in np.quantile(values, SHARES)) if values.size else ()

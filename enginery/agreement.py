"""How far outputs lie apart, and whether that is acceptable."""

import numpy as np
from numpy.typing import NDArray

from enginery.core.params import Thresholds
from enginery.core.records import Errors, Spread

Logits = NDArray[np.float32]
TINY = 1e-12
SHARES = (0, 0.01, 0.02, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 1)  # finer where the extremes are


def accuracy(logits: Logits, labels: NDArray[np.int64]) -> float:
    return float(np.mean(logits.argmax(axis=1) == labels))


def compare(wanted: Logits, got: Logits) -> Errors:
    """Both of shape (samples, classes), in double precision. NaN and infinity count as nonfinite, and then as zero."""
    nonfinite = int(np.count_nonzero(~np.isfinite(got)))
    exact = np.where(np.isfinite(wanted), wanted, 0).astype(np.float64)
    finite = np.where(np.isfinite(got), got, 0).astype(np.float64)
    difference = np.abs(exact - finite)
    cosines = _cosines(exact, finite)
    return Errors(
        max_abs=float(difference.max()),
        mean_abs=float(difference.mean()),
        relative=float(np.linalg.norm(difference) / max(float(np.linalg.norm(exact)), TINY)),
        cosine=float(cosines.mean()),
        worst_cosine=float(cosines.min()),
        top1_agreement=float(np.mean(exact.argmax(axis=1) == finite.argmax(axis=1))),
        nonfinite=nonfinite,
    )


def spread(wanted: Logits, got: Logits) -> Spread:
    """How single samples differ. What is not finite counts as zero."""
    exact, finite = (np.nan_to_num(logits.astype(np.float64), posinf=0, neginf=0) for logits in (wanted, got))
    relative = np.linalg.norm(exact - finite, axis=1) / np.maximum(np.linalg.norm(exact, axis=1), TINY)
    kept = _margins(finite, exact) / np.maximum(_margins(exact, exact), TINY) if exact.shape[1] > 1 else np.empty(0)
    return Spread(shares=SHARES, relative_error=_quantiles(relative), margin_kept=_quantiles(kept))


def broken_thresholds(errors: Errors, accuracy_drop: float, limits: Thresholds) -> tuple[str, ...]:
    """A sentence for each threshold that is broken."""
    broken = []
    if errors.nonfinite:
        broken.append(f"{errors.nonfinite} outputs are NaN or infinite")
    if not errors.cosine >= limits.cosine:
        broken.append(f"cosine {errors.cosine:.5f} is below {limits.cosine}")
    if not errors.relative <= limits.relative_error:
        broken.append(f"relative error {errors.relative:.2e} is above {limits.relative_error:.2e}")
    if not errors.top1_agreement >= limits.top1_agreement:
        broken.append(f"top-1 agreement {errors.top1_agreement:.2%} is below {limits.top1_agreement:.2%}")
    if not accuracy_drop <= limits.accuracy_drop:
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

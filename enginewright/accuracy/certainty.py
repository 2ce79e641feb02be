"""Tell whether the samples were enough to be sure that a figure is on one side of its threshold."""

from enginewright.accuracy.intervals import At
from enginewright.accuracy.records import Agreement, Interval, Result
from enginewright.core.params.precisions import Thresholds

MOST_SAMPLES = 10**8


def samples_needed(drop_at: At, limit: float, samples: int) -> int | None:
    """Return how many samples would tell whether a drop is above its limit: those there are if they do, and none if no
    number would, as the drop is the limit."""
    enough = samples
    while not _tells(drop_at(enough), limit):
        if (enough := 2 * enough) > MOST_SAMPLES:
            return None
    too_few = enough // 2 if enough > samples else enough
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        enough, too_few = (middle, too_few) if _tells(drop_at(middle), limit) else (enough, middle)
    return enough


def _tells(drop: Interval, limit: float) -> bool:
    return drop.high <= limit or drop.low > limit


def unsure_thresholds(agreement: Agreement | None, result: Result | None, limits: Thresholds) -> tuple[str, ...]:
    """Return a sentence for each threshold that the samples are too few to be sure of."""
    unsure = []
    if agreement and not agreement.is_sure:
        figure, limit = f"{agreement.name} {agreement.share_with_interval}", f"below {limits.agreement:.2%}"
        unsure.append(f"{figure} may be {limit}: {_how_many(agreement)}")
    if result and not result.is_sure:
        figure = f"{result.name} drop {result.drop_with_interval}"
        unsure.append(f"{figure} may be above {result.written(limits.metric_drop)}: {_how_many(result)}")
    return tuple(unsure)


def _how_many(figure: Agreement | Result) -> str:
    if figure.needed is None:
        return "it is so close to the limit that no number of samples would tell"
    return f"about {_rounded(figure.needed):,} samples would tell"


def _rounded(count: int) -> int:
    """Round up to two digits: the number holds for samples that are answered as these were."""
    unit: int = 10 ** max(0, len(str(count)) - 2)
    return -(-count // unit) * unit

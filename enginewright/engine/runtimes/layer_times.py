"""Take the medians of the times of layers over several calls."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from statistics import median

from enginewright.engine.record import UNKNOWN, Layer, LayerTime

CallTimes = Sequence[tuple[str, float]]  # the name and the milliseconds of each layer, in the order of execution
WARM_UP = 3  # calls before those that are traced


def median_times(layers: Sequence[Layer], calls: Sequence[CallTimes]) -> list[LayerTime]:
    """Return the layers with the medians of their times. Layers that share a name are matched to times in order."""
    times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for call in calls:
        for key, (_, milliseconds) in zip(_numbered(name for name, _ in call), call, strict=True):
            times[key].append(milliseconds)
    known = dict(zip(_numbered(layer.name for layer in layers), layers, strict=True))
    for name, number in [key for key in times if key not in known]:  # nothing is known of these but their times
        known[name, number] = Layer(name=name, kind=UNKNOWN, precision=UNKNOWN, computes=False)
    return [
        LayerTime(**layer.model_dump(), milliseconds=round(median(times[key]), 6) if key in times else 0)
        for key, layer in known.items()
    ]


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    """Number the names that are alike, from 0 on."""
    counts: defaultdict[str, Iterator[int]] = defaultdict(count)
    return [(name, next(counts[name])) for name in names]

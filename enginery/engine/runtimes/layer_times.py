"""The times of layers over several calls, as medians."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from enginery.engine.record import Layer, LayerTime

CallTimes = Sequence[tuple[str, float]]  # the name and the milliseconds of each layer, in the order of execution
WARM_UP = 3  # calls before those that are traced
UNKNOWN = "unknown"


def median_times(layers: Sequence[Layer], calls: Sequence[CallTimes]) -> list[LayerTime]:
    """The layers with their medians over the calls. Of layers that share a name, the first takes the first's times."""
    times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for call in calls:
        for key, (_, milliseconds) in zip(_numbered(name for name, _ in call), call, strict=True):
            times[key].append(milliseconds)
    known = dict(zip(_numbered(layer.name for layer in layers), layers, strict=True))
    for name, number in [key for key in times if key not in known]:  # timed, and nothing else is known of it
        known[name, number] = Layer(name=name, kind=UNKNOWN, precision=UNKNOWN, computes=False)
    return [
        LayerTime(**layer.model_dump(), milliseconds=round(median(times[key]), 6) if key in times else 0)
        for key, layer in known.items()
    ]


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    """Each name with how often it came before."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        numbered.append((name, seen[name]))
        seen[name] += 1
    return numbered

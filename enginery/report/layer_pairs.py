"""Pair the layers of two engines that do the same work, and find where one lost."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from enginery.engine.layer_names import node_names
from enginery.engine.record import LayerTime

SLOWER, WORTH_TELLING = 1.1, 0.005  # times the other layer, and a share of the whole: noise makes less


class Pair(NamedTuple):
    """The same work in two engines."""

    ours: LayerTime
    theirs: LayerTime

    @property
    def lost(self) -> float:
        return self.ours.milliseconds - self.theirs.milliseconds


class Comparison(NamedTuple):
    pairs: list[Pair]
    ours_alone: list[LayerTime]  # without a counterpart, the slowest first
    theirs_alone: list[LayerTime]
    unmatched: list[LayerTime]  # ours that compute: theirs do the same work under names that do not show it

    @property
    def computing(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.ours.computes]


def compare(ours: Sequence[LayerTime], theirs: Sequence[LayerTime]) -> Comparison:
    """Two layers are a pair if each is the first that has a name of the other.

    A fused layer is called after all of its nodes, the main one first. So an addition that one compiler fused into one
    convolution, and the other into another, does not pair the two.
    """
    by_our_names, by_their_names = _by_name(ours), _by_name(theirs)
    pairs = []
    for layer in ours:
        other = _first(layer, by_their_names)
        if other is not None and _first(other, by_our_names) is layer:
            pairs.append(Pair(layer, other))
    unmatched = [layer for layer in _left(ours, pairs) if layer.computes]
    unmatched_there = [layer for layer in _left(theirs, pairs) if layer.computes]
    if len(unmatched) == len(unmatched_there) == 1:  # one of them may be called after the graph's output
        pairs.append(Pair(unmatched.pop(), unmatched_there.pop()))
    return Comparison(pairs, _alone(_left(ours, pairs)), _alone(_left(theirs, pairs)), unmatched)


def losses(found: Comparison, whole: float) -> list[Pair]:
    """Those that are slower than their counterpart by more than noise, the greatest loss first."""
    slower = [
        pair
        for pair in found.pairs
        if pair.ours.milliseconds > SLOWER * pair.theirs.milliseconds and pair.lost > WORTH_TELLING * whole
    ]
    return sorted(slower, key=lambda pair: pair.lost, reverse=True)


def _by_name(layers: Sequence[LayerTime]) -> dict[str, LayerTime]:
    found: dict[str, LayerTime] = {}
    for layer in layers:
        for name in node_names(layer):
            found.setdefault(name, layer)
    return found


def _first(layer: LayerTime, by_name: Mapping[str, LayerTime]) -> LayerTime | None:
    return next((by_name[name] for name in node_names(layer) if name in by_name), None)


def _left(layers: Sequence[LayerTime], pairs: Sequence[Pair]) -> list[LayerTime]:
    paired = {id(layer) for pair in pairs for layer in pair}
    return [layer for layer in layers if id(layer) not in paired]


def _alone(left: Sequence[LayerTime]) -> list[LayerTime]:
    ran = [layer for layer in left if layer.milliseconds and not layer.computes]
    return sorted(ran, key=lambda layer: layer.milliseconds, reverse=True)

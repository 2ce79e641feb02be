"""Pair the layers of two engines that do the same work, and find where one engine is slower."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from enginewright.engine.layer_names import node_names
from enginewright.engine.record import LayerTime

CLEARLY_SLOWER = 1.1  # times the other layer; noise makes less
LEAST_LOSS = 0.005  # as a share of the engine's time; smaller losses do not matter


class Pair(NamedTuple):
    """The layers of two engines that do the same work."""

    ours: LayerTime
    theirs: LayerTime

    @property
    def lost(self) -> float:
        return self.ours.milliseconds - self.theirs.milliseconds


class Comparison(NamedTuple):
    pairs: list[Pair]
    only_ours: list[LayerTime]  # layers that do not compute and have no counterpart, the slowest first
    only_theirs: list[LayerTime]
    unmatched: list[LayerTime]  # our layers that compute: the other engine does their work under other names


def compare(ours: Sequence[LayerTime], theirs: Sequence[LayerTime]) -> Comparison:
    """Pair two layers if each is the first that has a name of the other."""
    # A fused layer has the names of all its nodes, the main one first. An addition that one compiler fuses into one
    # convolution and the other into another one therefore does not pair the two convolutions.
    by_our_names, by_their_names = _by_name(ours), _by_name(theirs)
    pairs = []
    for layer in ours:
        other = _first_namesake(layer, by_their_names)
        if other is not None and _first_namesake(other, by_our_names) is layer:
            pairs.append(Pair(layer, other))
    unmatched = [layer for layer in _unpaired(ours, pairs) if layer.computes]
    unmatched_there = [layer for layer in _unpaired(theirs, pairs) if layer.computes]
    if len(unmatched) == len(unmatched_there) == 1:  # one of them may be named after the graph's output
        pairs.append(Pair(unmatched.pop(), unmatched_there.pop()))
    return Comparison(pairs, _moving(_unpaired(ours, pairs)), _moving(_unpaired(theirs, pairs)), unmatched)


def losses(found: Comparison, whole: float) -> list[Pair]:
    """Return the pairs in which our layer is slower by more than noise, the greatest loss first."""
    slower = [
        pair
        for pair in found.pairs
        if pair.ours.milliseconds > CLEARLY_SLOWER * pair.theirs.milliseconds and pair.lost > LEAST_LOSS * whole
    ]
    return sorted(slower, key=lambda pair: pair.lost, reverse=True)


def _by_name(layers: Sequence[LayerTime]) -> dict[str, LayerTime]:
    """Return the first layer that has each name."""
    return {name: layer for layer in reversed(layers) for name in node_names(layer)}


def _first_namesake(layer: LayerTime, by_name: Mapping[str, LayerTime]) -> LayerTime | None:
    return next((by_name[name] for name in node_names(layer) if name in by_name), None)


def _unpaired(layers: Sequence[LayerTime], pairs: Sequence[Pair]) -> list[LayerTime]:
    paired = {id(layer) for pair in pairs for layer in pair}
    return [layer for layer in layers if id(layer) not in paired]


def _moving(layers: Sequence[LayerTime]) -> list[LayerTime]:
    """Return the layers that take time without computing, such as reorders and casts, the slowest first."""
    found = [layer for layer in layers if layer.milliseconds and not layer.computes]
    return sorted(found, key=lambda layer: layer.milliseconds, reverse=True)

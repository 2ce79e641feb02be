"""How long the layers of a search take on this machine, in the precision that was searched and in floating point."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from enginewright.engine.layer_names import node_names
from enginewright.engine.record import LayerTime
from enginewright.report.background import Maker
from enginewright.report.evidence import Findings
from enginewright.report.where_time_goes import fastest_in_floats
from enginewright.search.records import Search

Milliseconds = dict[str, float]  # by the node that an engine's layer begins with, as it fuses others into it


class Times(NamedTuple):
    beside: str  # the fastest precision that is not quantized
    batch: int
    searched: Milliseconds
    floating: Milliseconds


def times_of(found: Search, findings: Findings, makers: Mapping[str, Maker]) -> Times | None:
    """Return what both engines take for each layer, or None where there are no such times."""
    own = next((entry for entry in findings.precisions if entry.precision == found.precision), None)
    other, names = fastest_in_floats(findings), {layer.name for layer in found.layers}
    if own is None or other is None:
        return None
    searched, floating = (_by_layer(entry.trace.layers, names, makers) for entry in (own, other))
    if not searched or not floating:
        return None
    return Times(other.precision, own.trace.batch, searched, floating)


def _by_layer(layers: Sequence[LayerTime], names: Collection[str], makers: Mapping[str, Maker]) -> Milliseconds:
    """Return the time of each layer that is named after one of the nodes, or after what such a node returns."""
    found: Milliseconds = {}
    for layer in layers:
        made_by = (makers[name].name if name in makers and name not in names else name for name in node_names(layer))
        if main := next((name for name in made_by if name in names), None):
            found[main] = found.get(main, 0.0) + layer.milliseconds
    return found

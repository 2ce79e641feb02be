"""Where the time goes: the slowest layers of each engine, those that quantizing slowed, and what it left in floats."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from enginewright.core.facts import QUANTIZED, RUNTIMES
from enginewright.core.text import counted, first_few
from enginewright.engine.record import LayerTime, node_names, short_kind, short_name
from enginewright.precision.floats import floats_in_words
from enginewright.report.evidence import Evidence, Findings

CLEARLY_SLOWER = 1.1  # times the other layer; noise makes less
LEAST_LOSS = 0.005  # as a share of the engine's time; smaller losses do not matter
OVERSTATED = "Timing adds about the same time to each layer, so small layers are overstated."
MOST_LAYERS = 10
FAR_FROM_LATENCY = 1.5

Parts = list[str | pd.DataFrame]


class LayerPair(NamedTuple):
    """The layers of two engines that do the same work."""

    ours: LayerTime
    theirs: LayerTime

    @property
    def lost(self) -> float:
        return self.ours.milliseconds - self.theirs.milliseconds


class Comparison(NamedTuple):
    pairs: list[LayerPair]
    only_ours: list[LayerTime]  # layers that do not compute and have no counterpart, the slowest first
    only_theirs: list[LayerTime]
    unmatched: list[LayerTime]  # our layers that compute: the other engine does their work under other names


def compare(ours: Sequence[LayerTime], theirs: Sequence[LayerTime]) -> Comparison:
    """Pair two layers if each is the first that has a name of the other."""
    # A fused layer has the names of all its nodes, the main one first. An addition that one compiler fuses into one
    # convolution and the other into another one therefore does not pair the two convolutions.
    by_name = [{name: one for one in reversed(layers) for name in node_names(one)} for layers in (ours, theirs)]

    def namesake(layer: LayerTime, side: int) -> LayerTime | None:
        return next((by_name[side][name] for name in node_names(layer) if name in by_name[side]), None)

    found = ((layer, namesake(layer, 1)) for layer in ours)
    pairs = [LayerPair(layer, other) for layer, other in found if other is not None and namesake(other, 0) is layer]
    paired = {id(layer) for pair in pairs for layer in pair}
    left = [[layer for layer in layers if id(layer) not in paired] for layers in (ours, theirs)]
    unmatched, unmatched_there = ([layer for layer in layers if layer.computes] for layers in left)
    if len(unmatched) == len(unmatched_there) == 1:  # one of them may be named after the graph's output
        pairs.append(LayerPair(unmatched.pop(), unmatched_there.pop()))
    only_ours, only_theirs = (_by_time([layer for layer in layers if not layer.computes]) for layers in left)
    return Comparison(pairs, only_ours, only_theirs, unmatched)


def losses(found: Comparison, whole: float) -> list[LayerPair]:
    """Return the pairs in which our layer is slower by more than noise, the greatest loss first."""
    slower = [
        pair
        for pair in found.pairs
        if pair.ours.milliseconds > CLEARLY_SLOWER * pair.theirs.milliseconds and pair.lost > LEAST_LOSS * whole
    ]
    return sorted(slower, key=lambda pair: pair.lost, reverse=True)


def slowest_layers(entry: Evidence, findings: Findings) -> Parts:
    trace, ran = entry.trace, _by_time(entry.trace.layers)
    if not trace.layers:
        return [f"{RUNTIMES[findings.machine.runtime].title} reports no times of its layers."]
    beside = "."
    if any(latency.batch == trace.batch for latency in entry.benchmark.latencies):
        latency = entry.latency(trace.batch)
        what, whole = ("compute without copies", latency.compute) if latency.compute else ("latency", latency.p50)
        warning = f" {OVERSTATED}" if trace.milliseconds > FAR_FROM_LATENCY * whole else ""
        beside = f"; the {what} is {whole:.2f} ms.{warning}"
    which = f"The {MOST_LAYERS} slowest:" if len(ran) > MOST_LAYERS else "All of them, the slowest first:"
    total = f"{trace.milliseconds:.2f} ms in {counted(len(ran), 'layer')}{beside} {which}"
    shares = [{"share": f"{one.milliseconds / trace.milliseconds:.1%}"} for one in ran[:MOST_LAYERS]]
    return [total, _table(list(zip(ran, shares, strict=False)))]


def _by_time(layers: Sequence[LayerTime]) -> list[LayerTime]:
    """Return the layers that take time, the slowest first."""
    return sorted((one for one in layers if one.milliseconds), key=lambda one: one.milliseconds, reverse=True)


def _table(rows: Sequence[tuple[LayerTime, Mapping[str, str]]]) -> pd.DataFrame:
    """Make a table of layers, their figures first, because a phone shows the leftmost columns."""
    return pd.DataFrame(
        {"layer": short_name(one), "ms": f"{one.milliseconds:.3f}", **figures, "kind": short_kind(one)}
        | {"executed as": one.precision}
        for one, figures in rows
    ).set_index("layer")


def cost_of_quantizing(entry: Evidence, findings: Findings) -> Parts:
    # The fastest by latency: sums of layers cannot tell, as engines were timed one after the other.
    floats = [each for each in findings.precisions if each.precision not in QUANTIZED and each.trace.layers]
    other = min(floats, key=lambda each: each.latency(findings.race.batch).p50, default=None)
    if other is None or not entry.trace.layers:
        return ["There are no layer times to compare."]
    found = compare(entry.trace.layers, other.trace.layers)
    if not found.pairs:
        return [f"None of its layers shares a name with a layer of {other.precision}, so they cannot be compared."]
    computing = [pair for pair in found.pairs if pair.ours.computes]  # none if it is not known which layers compute
    pairs, what = (computing, "Compute layers") if computing else (found.pairs, "Layers")
    here, there = (sum(pair[side].milliseconds for pair in pairs) for side in (0, 1))
    shared = (
        f"{what} shared with {other.precision}, the fastest precision that is not quantized: {len(pairs)}. They take "
        f"{here:.2f} ms here and {there:.2f} ms there."
    )
    slower, rest = losses(found, entry.trace.milliseconds), _without_counterpart(found, entry, other)
    if not slower:
        which = "No layer" if not found.unmatched else "None of these"
        return [f"{shared} {which} became clearly slower.", *rest]
    lost = f"{sum(pair.lost for pair in slower):.2f} ms"
    most = f"; the {MOST_LAYERS} that lost most:" if len(slower) > MOST_LAYERS else ":"
    rows = [
        (pair.ours, {f"ms in {other.precision}": f"{pair.theirs.milliseconds:.3f}", "lost, ms": f"{pair.lost:.3f}"})
        for pair in slower[:MOST_LAYERS]
    ]
    return [f"{shared} Clearly slower here: {len(slower)}, by {lost} in total{most}", _table(rows), *rest]


def _without_counterpart(found: Comparison, entry: Evidence, other: Evidence) -> list[str]:
    """Describe the layers that only one of the two has, and those that could not be compared."""
    sentences = []
    if found.only_ours:
        took, there = (sum(one.milliseconds for one in layers) for layers in (found.only_ours, found.only_theirs))
        kinds = Counter(short_kind(layer) for layer in found.only_ours).most_common()
        counted = first_few([f"{count} {kind}" for kind, count in kinds])
        sentences.append(
            f"Layers that only {entry.precision} has take {took:.2f} ms, {took / entry.trace.milliseconds:.1%} of "
            f"its time: {counted}. Layers that only {other.precision} has take {there:.2f} ms there."
        )
    if found.unmatched:
        named = first_few([short_name(layer) for layer in found.unmatched])
        sentences.append(f"Not compared, because no layer of {other.precision} has their names: {named}.")
    return sentences


def what_is_left(entry: Evidence) -> str | None:
    """Say what a quantized engine leaves in floats, or return None where that is next to nothing."""
    words, times = floats_in_words(entry.floats), _times_of_kinds(entry)
    taken = f" They take {sum(times.values()):.0%} of the time of all layers." if times else ""
    return words and f"{words}.{taken}"


def left_table(entry: Evidence) -> pd.DataFrame:
    """Give the shares of what is left in floats by kind: of the weights, the operations, and the time of all layers."""
    times = _times_of_kinds(entry)
    return pd.DataFrame(
        {
            "kind": row.kind,
            "nodes": f"{row.count}",
            "of the weights": f"{row.weights:.1%}",
            "of the operations": f"{row.operations:.1%}",
            "of the time": f"{times[row.kind]:.1%}" if row.kind in times else "-",
        }
        for row in entry.floats
    ).set_index("kind")


def _times_of_kinds(entry: Evidence) -> dict[str, float]:
    """Return the share of the time of each kind. A layer has the name of the first node that is fused into it, which
    may be the sum of a bias where the product is in bytes. OpenVINO names recurrent layers itself."""
    kinds, found = {name: row.kind for row in entry.floats for name in row.names}, dict[str, float]()
    for layer in entry.trace.layers:
        name = node_names(layer)[0]
        kind = kinds.get(name) or next((each for each in kinds.values() if name.startswith(f"{each}Sequence_")), None)
        if kind and layer.precision not in QUANTIZED:
            found[kind] = found.get(kind, 0.0) + layer.milliseconds / entry.trace.milliseconds
    return found

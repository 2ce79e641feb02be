"""The slowest layers of each engine, and the layers that became faster or slower by quantizing."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from enginewright.core.precisions import QUANTIZED
from enginewright.core.runtimes import RUNTIMES
from enginewright.core.text import first_few
from enginewright.engine.layer_names import short_kind, short_name
from enginewright.engine.record import LayerTime
from enginewright.report.evidence import Evidence, Findings
from enginewright.report.layer_pairs import Comparison, compare, losses

OVERSTATED = "Timing adds about the same time to each layer, so small layers are overstated."
MOST_LAYERS = 10
FAR_FROM_LATENCY = 1.5

Parts = list[str | pd.DataFrame]


def layer_sections(findings: Findings) -> Parts:
    trace = findings.precisions[0].trace
    parts: Parts = [
        f"Medians over {trace.calls} calls at batch {trace.batch}, in a separate pass: timing layers slows an "
        "engine, so their sum differs from the latency."
    ]
    for entry in findings.precisions:
        parts += [f"### {entry.precision}", *slowest_layers(entry, findings)]
    for entry in findings.precisions:
        if entry.precision in QUANTIZED:
            parts += [f"### {gained_and_lost(entry)}", *cost_of_quantizing(entry, findings)]
    return parts


def gained_and_lost(entry: Evidence) -> str:
    return f"What {entry.precision} gained and lost, layer by layer"


def slowest_layers(entry: Evidence, findings: Findings) -> Parts:
    ran = _by_time(entry)
    if not entry.trace.layers:
        return [f"{RUNTIMES[findings.machine.runtime].title} reports no times of its layers."]
    total = f"{entry.trace.milliseconds:.2f} ms in {len(ran)} layers{_beside_latency(entry)}"
    which = f"The {MOST_LAYERS} slowest:" if len(ran) > MOST_LAYERS else "All of them, the slowest first:"
    return [f"{total} {which}", _time_table(entry, ran[:MOST_LAYERS])]


def next_slowest_layers(entry: Evidence, most: int) -> pd.DataFrame | None:
    """Return the layers that follow the slowest ones, at most so many: the page folds them away."""
    others = _by_time(entry)[MOST_LAYERS:][:most]
    return _time_table(entry, others) if others else None


def _by_time(entry: Evidence) -> list[LayerTime]:
    return sorted(
        (one for one in entry.trace.layers if one.milliseconds), key=lambda one: one.milliseconds, reverse=True
    )


def _time_table(entry: Evidence, layers: Sequence[LayerTime]) -> pd.DataFrame:
    return _table([(one, {"share": f"{one.milliseconds / entry.trace.milliseconds:.1%}"}) for one in layers])


def _beside_latency(entry: Evidence) -> str:
    raced = [latency for latency in entry.benchmark.latencies if latency.batch == entry.trace.batch]
    if not raced:
        return "."
    latency = entry.latency(entry.trace.batch)
    what, whole = ("compute without copies", latency.compute) if latency.compute else ("latency", latency.p50)
    far = entry.trace.milliseconds > FAR_FROM_LATENCY * whole
    return f"; the {what} is {whole:.2f} ms." + (f" {OVERSTATED}" if far else "")


def fastest_in_floats(findings: Findings) -> Evidence | None:
    """Return the fastest precision with layer times that is not quantized, by latency. Sums of layers cannot tell:
    engines were timed one after the other."""
    others = [each for each in findings.precisions if each.precision not in QUANTIZED and each.trace.layers]
    return min(others, key=lambda each: each.latency(findings.tuned_batch).p50, default=None)


def cost_of_quantizing(entry: Evidence, findings: Findings) -> Parts:
    other = fastest_in_floats(findings)
    if other is None or not entry.trace.layers:
        return ["There are no layer times to compare."]
    found = compare(entry.trace.layers, other.trace.layers)
    if not found.pairs:
        return [f"None of its layers shares a name with a layer of {other.precision}, so they cannot be compared."]
    slower, rest = losses(found, entry.trace.milliseconds), _without_counterpart(found, entry, other)
    if not slower:
        which = "No layer" if not found.unmatched else "None of these"
        return [f"{_shared(found, other)} {which} became clearly slower.", *rest]
    lost = f"{sum(pair.lost for pair in slower):.2f} ms"
    most = f"; the {MOST_LAYERS} that lost most:" if len(slower) > MOST_LAYERS else ":"
    total = f"{_shared(found, other)} Clearly slower here: {len(slower)}, by {lost} in total{most}"
    there = f"ms in {other.precision}"
    rows = [
        (pair.ours, {there: f"{pair.theirs.milliseconds:.3f}", "lost, ms": f"{pair.lost:.3f}"})
        for pair in slower[:MOST_LAYERS]
    ]
    return [total, _table(rows), *rest]


def _shared(found: Comparison, other: Evidence) -> str:
    """Sum up the pairs that compute, or all pairs if it is not known which layers compute."""
    computing = [pair for pair in found.pairs if pair.ours.computes]
    pairs, what = (computing, "Compute layers") if computing else (found.pairs, "Layers")
    ours, theirs = (sum(pair[side].milliseconds for pair in pairs) for side in (0, 1))
    return (
        f"{what} shared with {other.precision}, the fastest precision that is not quantized: {len(pairs)}. They take "
        f"{ours:.2f} ms here and {theirs:.2f} ms there."
    )


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


def _table(rows: Sequence[tuple[LayerTime, Mapping[str, str]]]) -> pd.DataFrame:
    """Make a table of layers, their figures first, because a phone shows the leftmost columns."""
    return pd.DataFrame(
        {"layer": short_name(one), "ms": f"{one.milliseconds:.3f}", **figures, "kind": short_kind(one)}
        | {"executed as": one.precision}
        for one, figures in rows
    ).set_index("layer")

"""Pictures of a search: what each layer loses, and the sets of layers that were tried."""

from collections import Counter
from collections.abc import Sequence

import pandas as pd
from markupsafe import Markup

from enginewright.core.text import counted, first_few
from enginewright.precision.mixing.records import Candidate, Mix
from enginewright.precision.rescue.records import Rescue, Tried, errors_in_words
from enginewright.precision.search.records import Search, SearchedLayer, in_words
from enginewright.report.page.charts import Figure, from_zero
from enginewright.report.page.listing import Row, Table, bar, dot, draw_rows, of_frame, table
from enginewright.report.where_time_goes import Times

MOST_SAMPLES = 12
MOST_LAYERS = 40  # those that lose most, in the order of the graph


def describe_search(found: Search) -> str:
    words, (_, tried, others) = in_words(found), found.samples
    samples = f", on {tried} calibration samples; {others} others judged the answer" if found.layers else ""
    return f"{words[0].upper()}{words[1:]}{samples}."


def search_pictures(found: Search, times: Times | None) -> list[Figure]:
    """Draw the losses of layers and the path of the search; nothing if int8 needed no search."""
    if len(found.path) < 2:
        return []
    layers = _worst_layers(found)
    costs = f"What {found.precision} costs each layer alone, in the order of the graph"
    buys = f"What {found.precision} buys the same layers"
    return [
        Figure("The sets of layers that were tried, the fewest first", _path(found)),
        *([Figure("The samples whose answers change first", _changed(found))] if _counts(found) else []),
        Figure(costs, _losses(found, layers)),
        Figure(f"{buys} in time", _times(found, layers, times))
        if times
        else Figure(f"{buys}: their work, as there are no times of layers here", _work(found, layers)),
    ]


def _worst_layers(found: Search) -> list[SearchedLayer]:
    """Return the measured layers that lose most, in the order of the graph."""
    measured = [layer for layer in found.layers if layer.loss is not None]
    worst = {layer.name for layer in sorted(measured, key=lambda each: -(each.loss or 0))[:MOST_LAYERS]}
    return [layer for layer in measured if layer.name in worst]


def _losses(found: Search, layers: Sequence[SearchedLayer]) -> Markup:
    rows = [_row(found, layer, 100 * (layer.loss or 0), f"{layer.loss:.2%}") for layer in layers]
    scale = from_zero(100 * (layer.loss or 0) for layer in layers)
    title = f"What {found.precision} costs each layer alone"
    return draw_rows("search-losses", title, rows, scale, "relative error of the outputs, %; spared layers in colour")


def _work(found: Search, layers: Sequence[SearchedLayer]) -> Markup:
    rows = [_row(found, layer, 100 * layer.work, f"{layer.work:.1%}") for layer in layers]
    scale = from_zero(100 * layer.work for layer in layers)
    return draw_rows("search-work", "The work of each layer", rows, scale, "% of the work of all layers, as estimated")


def _row(found: Search, layer: SearchedLayer, length: float, value: str) -> Row:
    is_spared = layer.name in found.spared
    mark = bar(length, "strong" if is_spared else "faint", layer.op_type)
    return Row(layer.name, (mark,), value, "strong" if is_spared else "plain")


def _times(found: Search, layers: Sequence[SearchedLayer], times: Times) -> Markup:
    """Draw how long each layer takes in floating point, and in what was searched unless it is spared."""
    rows = [_time_row(found, layer, times) for layer in layers]
    scale = from_zero(mark.end for row in rows for mark in row.marks)
    title = f"The time of each layer in {times.beside} and in {found.precision}"
    unit = f"ms at batch {times.batch} in {times.beside}; the dot: in {found.precision}"
    return draw_rows("search-times", title, rows, scale, unit)


def _time_row(found: Search, layer: SearchedLayer, times: Times) -> Row:
    is_spared = layer.name in found.spared
    look = "strong" if is_spared else "plain"
    floating, searched = times.floating.get(layer.name), times.searched.get(layer.name)
    if floating is None:
        return Row(layer.name, (), "within another layer", look)
    before = bar(floating, "strong" if is_spared else "faint", times.beside)
    if is_spared or searched is None:
        return Row(layer.name, (before,), f"{floating:.3f}, " + ("spared" if is_spared else "then fused"), look)
    return Row(layer.name, (before, dot(searched, "plain", found.precision)), f"{floating:.3f} to {searched:.3f}", look)


def _counts(found: Search) -> dict[str, tuple[int, int]]:
    """Count for each sample the sets of layers by which its answer is another one, and those that were tried on it."""
    places = {name: place for step in found.path for name, place in step.changed.items()}
    changes = Counter(name for step in found.path for name in step.changed)
    return {name: (changes[name], sum(place < step.looked_at for step in found.path)) for name, place in places.items()}


def _changed(found: Search) -> Markup:
    """Draw the samples that change their answer by most of the sets: it takes the least to do so."""
    remain, counts = found.chosen.changed, _counts(found)
    most = sorted(counts, key=lambda name: (counts[name][0] / counts[name][1], counts[name][0]), reverse=True)
    rows = [
        Row(
            name,
            (bar(100 * counts[name][0] / counts[name][1], "strong" if name in remain else "faint"),),
            "{} of {}".format(*counts[name]),
            "strong" if name in remain else "plain",
        )
        for name in most[:MOST_SAMPLES]
    ]
    title = f"Calibration samples whose answer changes by {found.precision}"
    unit = "% of the sets tried on the sample; in colour: the chosen one, too"
    return draw_rows("search-changed", title, rows, from_zero([100.0]), unit)


def _path(found: Search) -> Markup:
    steps = sorted(found.path, key=lambda step: step.spared)
    answer = len(found.spared)
    rows = [
        Row(
            f"{counted(step.spared, 'layer')}, {step.work:.0%} of the work",
            (bar(100 * min(step.used, 2), "strong" if step.spared == answer else "faint"),),
            f"{step.used:.0%}",
            "strong" if step.spared == answer else "plain",
        )
        for step in steps
    ]
    title = f"What is lost with the layers in floating point that {found.precision} loses most by"
    scale = from_zero([200.0 if any(step.used > 1 for step in steps) else 100.0])
    return draw_rows(
        "search-path", title, rows, scale, "% of what the thresholds allow; up to 200 are drawn", beside=100
    )


# The table of what was tried before a search, and of what each brought.


def rescue_table(found: Rescue) -> Table:
    fitted, confirmed = found.samples
    caption = (
        f"Rescues of {found.precision}, fitted to {fitted} calibration samples: the relative error of the outputs of "
        f"{confirmed} others: the mean, and in parentheses that of all at once"
    )
    rows = [["as calibrated", errors_in_words(found.error, found.at_once), _why_no_more(found)]]
    rows += [[" and ".join(each.names), *_brought(each, found)] for each in found.tried]
    return table(caption, ["rescue", "error", "brought"], rows)


def _why_no_more(found: Rescue) -> str:
    if not found.tried:
        return "no rescue is asked for"
    if found.enough is None or found.error >= found.enough:
        return "-"
    return f"below {found.enough:.0%}, so that only what is quick was tried"


def _brought(tried: Tried, found: Rescue) -> tuple[str, str]:
    if tried.error is None:
        return "-", "does not apply to this graph"
    change = tried.error / found.error - 1 if found.error else 0.0
    layers = f": {first_few(found.spared)} in floating point" if found.spared else ""
    verdict = f"kept{layers}" if tried.names == found.kept else "not kept"
    return errors_in_words(tried.error, tried.at_once), f"{change:+.0%}, {verdict}"


# Tables of a mix: its candidates with what they promised and delivered, and the parts of the graph.


def candidates_table(mix: Mix) -> Table:
    mixes = len(mix.candidates) - len(mix.types)
    names = [*mix.types, *(f"mix {number}" for number in range(1, mixes + 1))]
    rows = [_mix_row(mix, number, candidate) for number, candidate in enumerate(mix.candidates)]
    frame = pd.DataFrame(rows, index=pd.Index(names, name="candidate"))
    return of_frame(f"Candidates for {mix.precision}: times as fast as int8 at batch {mix.batch}", frame)


def _mix_row(mix: Mix, number: int, candidate: Candidate) -> dict[str, str]:
    delivered = mix.delivered if number == mix.mixed else None
    parts = {f"parts in {name}": f"{candidate.assignment.count(name)} of {len(mix.blocks)}" for name in mix.types[1:]}
    return parts | {
        "promised by layer times": candidate.promised.in_figures(),
        "race of all": "-" if candidate.raced is None else f"{candidate.raced:.3f}",
        f"delivered, over {mix.rival}": delivered.in_figures() if delivered else "-",
        "of what thresholds allow": f"{candidate.used:.0%}",
    }


def blocks_table(mix: Mix) -> Table:
    assignment = mix.candidates[mix.mixed or 0].assignment  # the first is all in int8
    rows = [
        {"last node": block.last}
        | {f"ms in {name}": f"{block.milliseconds[name]:.3f}" for name in mix.types}
        | {"in the best mix": name}
        for name, block in zip(assignment, mix.blocks, strict=True)
    ]
    frame = pd.DataFrame(rows, index=pd.Index([block.first for block in mix.blocks], name="first node"))
    return of_frame("The parts of the graph, and the times of their layers", frame)

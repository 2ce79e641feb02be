"""Pictures of a search: what each layer loses, and the sets of layers that were tried."""

from collections import Counter

from markupsafe import Markup

from enginery.report.page.rows import Row, bar, draw_rows
from enginery.report.page.scales import from_zero
from enginery.report.page.svg import Figure
from enginery.search.in_words import in_words
from enginery.search.records import Search

MOST_SAMPLES = 12
MOST_LAYERS = 40  # those that lose most, in the order of the graph


def describe_search(found: Search) -> str:
    words = in_words(found)
    return f"{words[0].upper()}{words[1:]}, on {found.samples[1]} calibration samples."


def search_pictures(found: Search) -> list[Figure]:
    """Draw the losses of layers and the path of the search; nothing if int8 needed no search."""
    if len(found.path) < 2:
        return []
    return [
        Figure("The sets of layers that were tried, the fewest first", _path(found)),
        Figure(f"What {found.precision} costs each layer alone, in the order of the graph", _losses(found)),
        *([Figure("The samples whose answers change first", _changed(found))] if _counts(found) else []),
    ]


def _losses(found: Search) -> Markup:
    measured = [layer for layer in found.layers if layer.loss is not None]
    worst = {layer.name for layer in sorted(measured, key=lambda each: -(each.loss or 0))[:MOST_LAYERS]}
    rows = [
        Row(
            layer.name,
            (bar(100 * (layer.loss or 0), "strong" if layer.name in found.spared else "faint", layer.op_type),),
            f"{layer.loss:.2%}, {layer.work:.1%} of the work",
            "strong" if layer.name in found.spared else "plain",
        )
        for layer in measured
        if layer.name in worst
    ]
    scale = from_zero(100 * (layer.loss or 0) for layer in measured)
    title = f"What {found.precision} costs each layer alone"
    return draw_rows("search-losses", title, rows, scale, "relative error of the outputs, %; spared layers in colour")


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
    unit = "% of the sets of layers tried on the sample that change its answer; in colour: also the set that was chosen"
    return draw_rows("search-changed", title, rows, from_zero([100.0]), unit)


def _path(found: Search) -> Markup:
    steps = sorted(found.path, key=lambda step: step.spared)
    answer = len(found.spared)
    rows = [
        Row(
            f"{step.spared} layers, {step.work:.0%} of the work",
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

"""What was tried on the way to a precision: pictures of a search, and tables of its rescues and of a mix."""

import pandas as pd

from enginewright.core.text import counted, first_few
from enginewright.precision.records import Mix, Rescue, Search, errors_in_words
from enginewright.report.page.charts import Row, bar, draw_rows
from enginewright.report.page.picture import Figure, Picture, from_zero

MOST_LAYERS = 40  # those that lose most, in the order of the graph


def describe_search(found: Search) -> str:
    words, (_, tried, others) = found.in_words(), found.samples
    samples = f", on {tried} calibration samples; {others} others judged the answer" if found.layers else ""
    return f"{words[0].upper()}{words[1:]}{samples}."


def search_pictures(found: Search) -> list[Figure]:
    """Draw the path of the search, and what the layers lose that lose most; nothing if int8 needed no search."""
    if len(found.path) < 2:
        return []
    return [
        Figure("The sets of layers that were tried, the fewest first", _draw_path(found)),
        Figure(f"What {found.precision} costs each layer alone, in the order of the graph", _draw_losses(found)),
    ]


def _draw_path(found: Search) -> Picture:
    rows = []
    for step in sorted(found.path, key=lambda step: step.spared):
        is_answer = step.spared == len(found.spared)
        length = bar(100 * min(step.used, 2), "strong" if is_answer else "faint")
        label = f"{counted(step.spared, 'layer')}, {step.work:.0%} of the work"
        rows.append(Row(label, (length,), f"{step.used:.0%}", "strong" if is_answer else "plain"))
    title = f"What is lost with the layers in floating point that {found.precision} loses most by"
    scale = from_zero([200.0 if any(step.used > 1 for step in found.path) else 100.0])
    unit = "% of what the thresholds allow; up to 200 are drawn"
    return draw_rows("search-path", title, rows, unit, scale, beside=100)


def _draw_losses(found: Search) -> Picture:
    measured = [(layer, layer.loss) for layer in found.layers if layer.loss is not None]
    worst = {layer.name for layer, _ in sorted(measured, key=lambda pair: -pair[1])[:MOST_LAYERS]}
    rows = []
    for layer, loss in measured:
        is_spared = layer.name in found.spared
        mark = bar(100 * loss, "strong" if is_spared else "faint", layer.op_type)
        if layer.name in worst:
            rows.append(Row(layer.name, (mark,), f"{loss:.2%}", "strong" if is_spared else "plain"))
    unit = "relative error of the outputs, %; spared layers in colour"
    return draw_rows("search-losses", f"What {found.precision} costs each layer alone", rows, unit)


def rescue_table(found: Rescue) -> pd.DataFrame:
    """List what was tried before a search, and what each brought."""
    first = "-" if found.tried else "no rescue is asked for"
    if found.tried and found.enough is not None and found.error < found.enough:
        first = f"below {found.enough:.0%}, so that only what is quick was tried"
    rows = {"as calibrated": (errors_in_words(found.error, found.at_once), first)}
    for each in found.tried:
        error, brought = "-", "does not apply to this graph"
        if each.error is not None:
            error = errors_in_words(each.error, each.at_once)
            change = each.error / found.error - 1 if found.error else 0.0
            layers = f": {first_few(found.spared)} in floating point" if found.spared else ""
            brought = f"{change:+.0%}, {f'kept{layers}' if each.names == found.kept else 'not kept'}"
        rows[" and ".join(each.names)] = error, brought
    return pd.DataFrame.from_dict(rows, orient="index", columns=["error", "brought"]).rename_axis("rescue")


def candidates_table(mix: Mix) -> pd.DataFrame:
    """List what a mix was chosen from, with what each promised and delivered."""
    rows = []
    for number, candidate in enumerate(mix.candidates):
        delivered = mix.delivered if number == mix.mixed else None
        row = {
            "candidate": mix.types[number] if number < len(mix.types) else f"mix {number - len(mix.types) + 1}",
            **{
                f"parts in {name}": f"{candidate.assignment.count(name)} of {len(mix.blocks)}" for name in mix.types[1:]
            },
            "promised by layer times": candidate.promised.in_figures(),
            "race of all": "-" if candidate.raced is None else f"{candidate.raced:.3f}",
            f"delivered, over {mix.rival}": delivered.in_figures() if delivered else "-",
            "of what thresholds allow": f"{candidate.used:.0%}",
        }
        rows.append(row)
    return pd.DataFrame(rows).set_index("candidate")


def blocks_table(mix: Mix) -> pd.DataFrame:
    assignment = mix.candidates[mix.mixed or 0].assignment  # the first is all in int8
    return pd.DataFrame(
        {
            "first node": block.first,
            "last node": block.last,
            **{f"ms in {name}": f"{block.milliseconds[name]:.3f}" for name in mix.types},
            "in the best mix": chosen,
        }
        for chosen, block in zip(assignment, mix.blocks, strict=True)
    ).set_index("first node")

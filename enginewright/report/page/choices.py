"""What was tried on the way to a precision: pictures of a search, and tables of its rescues and of a mix."""

from enginewright.core.text import counted, first_few
from enginewright.precision.records import Mix, Rescue, Search, SearchedLayer, errors_in_words
from enginewright.report.page.charts import Row, bar, dot, draw_rows
from enginewright.report.page.picture import Figure, Picture, from_zero
from enginewright.report.tables import Table, table
from enginewright.report.where_time_goes import Times

MOST_LAYERS = 40  # those that lose most, in the order of the graph


def describe_search(found: Search) -> str:
    words, (_, tried, others) = found.in_words(), found.samples
    samples = f", on {tried} calibration samples; {others} others judged the answer" if found.layers else ""
    return f"{words[0].upper()}{words[1:]}{samples}."


def search_pictures(found: Search, times: Times | None) -> list[Figure]:
    """Draw the path of the search, and what the layers lose that lose most; nothing if int8 needed no search."""
    if len(found.path) < 2:
        return []
    measured = [(layer, layer.loss) for layer in found.layers if layer.loss is not None]
    worst = {layer.name for layer, _ in sorted(measured, key=lambda pair: -pair[1])[:MOST_LAYERS]}
    losses = [(layer, 100 * loss, f"{loss:.2%}") for layer, loss in measured if layer.name in worst]
    costs = f"What {found.precision} costs each layer alone"
    unit = "relative error of the outputs, %; spared layers in colour"
    buys = f"What {found.precision} buys the same layers"
    work = [(layer, 100 * layer.work, f"{layer.work:.1%}") for layer, _, _ in losses]
    of_work = "% of the work of all layers, as estimated"
    return [
        Figure("The sets of layers that were tried, the fewest first", _draw_path(found)),
        Figure(f"{costs}, in the order of the graph", _draw_layers("losses", found, costs, losses, unit)),
        Figure(f"{buys} in time", _draw_times(found, [layer for layer, _, _ in losses], times))
        if times
        else Figure(
            f"{buys}: their work, as there are no times of layers here",
            _draw_layers("work", found, "The work of each layer", work, of_work),
        ),
    ]


def _draw_path(found: Search) -> Picture:
    rows = []
    for step in sorted(found.path, key=lambda step: step.spared):
        is_answer = step.spared == len(found.spared)
        length = bar(100 * min(step.spent, 2), "strong" if is_answer else "faint")
        label = f"{counted(step.spared, 'layer')}, {step.work:.0%} of the work"
        rows.append(Row(label, (length,), f"{step.spent:.0%}", "strong" if is_answer else "plain"))
    title = f"What is lost with the layers in floating point that {found.precision} loses most by"
    scale = from_zero([200.0 if any(step.spent > 1 for step in found.path) else 100.0])
    unit = "% of what the thresholds allow; up to 200 are drawn"
    return draw_rows("search-path", title, rows, unit, scale=scale, beside=100)


def _draw_layers(
    key: str, found: Search, title: str, lengths: list[tuple[SearchedLayer, float, str]], unit: str
) -> Picture:
    rows = []
    for layer, length, value in lengths:
        is_spared = layer.name in found.spared
        mark = bar(length, "strong" if is_spared else "faint", layer.op_type)
        rows.append(Row(layer.name, (mark,), value, "strong" if is_spared else "plain"))
    return draw_rows(f"search-{key}", title, rows, unit)


def _draw_times(found: Search, layers: list[SearchedLayer], times: Times) -> Picture:
    """Draw how long each layer takes in floating point, and in what was searched unless it is spared."""
    rows = []
    for layer in layers:
        is_spared = layer.name in found.spared
        look = "strong" if is_spared else "plain"
        floating, searched = times.floating.get(layer.name), times.searched.get(layer.name)
        if floating is None:
            rows.append(Row(layer.name, (), "within another layer", look))
            continue
        before = bar(floating, "strong" if is_spared else "faint", times.beside)
        if is_spared or searched is None:
            rows.append(Row(layer.name, (before,), f"{floating:.3f}, {'spared' if is_spared else 'then fused'}", look))
        else:
            after = dot(searched, "plain", found.precision)
            rows.append(Row(layer.name, (before, after), f"{floating:.3f} to {searched:.3f}", look))
    title = f"The time of each layer in {times.beside} and in {found.precision}"
    unit = f"ms at batch {times.batch} in {times.beside}; the dot: in {found.precision}"
    return draw_rows("search-times", title, rows, unit)


def rescue_table(found: Rescue) -> Table:
    """List what was tried before a search, and what each brought."""
    fitted, confirmed = found.samples
    caption = (
        f"Rescues of {found.precision}, fitted to {fitted} calibration samples: the relative error of the outputs of "
        f"{confirmed} others: the mean, and in parentheses that of all at once"
    )
    first = "-" if found.tried else "no rescue is asked for"
    if found.tried and found.enough is not None and found.error < found.enough:
        first = f"below {found.enough:.0%}, so that only what is quick was tried"
    rows = [["as calibrated", errors_in_words(found.error, found.at_once), first]]
    for each in found.tried:
        error, brought = "-", "does not apply to this graph"
        if each.error is not None:
            error = errors_in_words(each.error, each.at_once)
            change = each.error / found.error - 1 if found.error else 0.0
            layers = f": {first_few(found.spared)} in floating point" if found.spared else ""
            brought = f"{change:+.0%}, {f'kept{layers}' if each.names == found.kept else 'not kept'}"
        rows.append([" and ".join(each.names), error, brought])
    return table(caption, ["rescue", "error", "brought"], rows)


def candidates_table(mix: Mix) -> Table:
    """List what a mix was chosen from, with what each promised and delivered."""
    rows = []
    for number, candidate in enumerate(mix.candidates):
        delivered = mix.delivered if number == mix.mixed else None
        rows.append(
            [
                mix.types[number] if number < len(mix.types) else f"mix {number - len(mix.types) + 1}",
                *(f"{candidate.assignment.count(name)} of {len(mix.blocks)}" for name in mix.types[1:]),
                candidate.promised.in_figures(),
                "-" if candidate.raced is None else f"{candidate.raced:.3f}",
                delivered.in_figures() if delivered else "-",
                f"{candidate.spent:.0%}",
            ]
        )
    columns = ["candidate", *(f"parts in {name}" for name in mix.types[1:]), "promised by layer times", "race of all"]
    columns += [f"delivered, over {mix.rival}", "of what thresholds allow"]
    return table(f"Candidates for {mix.precision}: times as fast as int8 at batch {mix.batch}", columns, rows)


def blocks_table(mix: Mix) -> Table:
    assignment = mix.candidates[mix.mixed or 0].assignment  # the first is all in int8
    rows = [
        [block.first, block.last, *(f"{block.milliseconds[name]:.3f}" for name in mix.types), chosen]
        for chosen, block in zip(assignment, mix.blocks, strict=True)
    ]
    columns = ["first node", "last node", *(f"ms in {name}" for name in mix.types), "in the best mix"]
    return table("The parts of the graph, and the times of their layers", columns, rows)

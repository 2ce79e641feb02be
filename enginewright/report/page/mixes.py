"""Tables of a mix: its candidates with what they promised and delivered, and the parts of the graph."""

import pandas as pd

from enginewright.mixing.records import Candidate, Mix
from enginewright.report.page.listing import Table, of_frame


def candidates_table(mix: Mix) -> Table:
    mixes = len(mix.candidates) - len(mix.types)
    names = [*mix.types, *(f"mix {number}" for number in range(1, mixes + 1))]
    rows = [_row(mix, number, candidate) for number, candidate in enumerate(mix.candidates)]
    frame = pd.DataFrame(rows, index=pd.Index(names, name="candidate"))
    return of_frame(f"Candidates for {mix.precision}: times as fast as int8 at batch {mix.batch}", frame)


def _row(mix: Mix, number: int, candidate: Candidate) -> dict[str, str]:
    delivered = mix.delivered if number == mix.mixed else None
    parts = {f"parts in {name}": f"{candidate.way.count(name)} of {len(mix.blocks)}" for name in mix.types[1:]}
    return parts | {
        "promised by layer times": candidate.promised.in_figures(),
        "race of all": "-" if candidate.raced is None else f"{candidate.raced:.3f}",
        f"delivered, over {mix.rival}": delivered.in_figures() if delivered else "-",
        "of what thresholds allow": f"{candidate.used:.0%}",
    }


def blocks_table(mix: Mix) -> Table:
    way = mix.candidates[mix.mixed or 0].way  # the first is all in int8
    rows = [
        {"last node": block.last}
        | {f"ms in {name}": f"{block.milliseconds[name]:.3f}" for name in mix.types}
        | {"in the best mix": name}
        for name, block in zip(way, mix.blocks, strict=True)
    ]
    frame = pd.DataFrame(rows, index=pd.Index([block.first for block in mix.blocks], name="first node"))
    return of_frame("The parts of the graph, and the times of their layers", frame)

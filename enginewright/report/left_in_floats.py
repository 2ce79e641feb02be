"""What a quantized engine leaves in floats, by kind: of its weights, its operations, and the time of its layers."""

import pandas as pd

from enginewright.engine.layer_names import node_names
from enginewright.quantization.floats import floats_in_words
from enginewright.report.evidence import Evidence


def what_is_left(entry: Evidence) -> str | None:
    """Return a sentence, or None where next to nothing is left."""
    words = floats_in_words(entry.floats)
    times = _times(entry)
    taken = f" They take {sum(times.values()):.0%} of the time of all layers." if times else ""
    return words and f"{words}.{taken}"


def left_table(entry: Evidence) -> pd.DataFrame:
    times = _times(entry)
    rows = [
        {
            "nodes": f"{row.count}",
            "of the weights": f"{row.weights:.1%}",
            "of the operations": f"{row.operations:.1%}",
            "of the time": f"{times[row.kind]:.1%}" if row.kind in times else "-",
        }
        for row in entry.floats
    ]
    return pd.DataFrame(rows, index=pd.Index([row.kind for row in entry.floats], name="kind"))


def _times(entry: Evidence) -> dict[str, float]:
    """Return the share of the time of each kind. Other nodes may be fused into a layer, which the first one names."""
    kinds, found = {name: row.kind for row in entry.floats for name in row.names}, dict[str, float]()
    for layer in entry.trace.layers:
        if kind := kinds.get(node_names(layer)[0]):
            found[kind] = found.get(kind, 0.0) + layer.milliseconds / entry.trace.milliseconds
    return found

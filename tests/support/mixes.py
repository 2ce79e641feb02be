"""The answer of the stage mix, of which a test gives what matters to it."""

from enginewright.core.params.precisions import Keep
from enginewright.precision.records import Mix

UNTOLD = {
    "precision": "best",
    "machine": "a board",
    "batch": 8,
    "calibration": "",
    "model": "",
    "keep": Keep(op_types=(), nodes=()),
    "is_searched": False,
    "spared": (),
}


def mix_with(types, traces, **fields):
    return Mix(**UNTOLD | fields, types=types, traces=traces)

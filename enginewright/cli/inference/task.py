"""Run an engine, and find the task that reads its outputs."""

from pathlib import Path

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.data.feeds import Feeds, Outputs
from enginewright.engine.engine import Engine
from enginewright.engine.record import EngineRecord
from enginewright.tasks.choose import task_of
from enginewright.tasks.task import Task


def require_readable(record: EngineRecord, folder: Path) -> Task:
    """Return the task of the engine, if it can read one of its outputs."""
    inputs, outputs = record.interface.sampled, record.interface.outputs
    task = task_of(record.task, record.scores, record.class_names, record.boxes, record.preprocessing)
    if (len(inputs) != 1 and record.preprocessing) or task.reads({spec.name: spec.shape for spec in outputs}) is None:
        tensors = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in (*inputs, *outputs))
        raise EnginewrightError(
            f"{folder} has no answers to show: its task, {record.task}, needs an output that it can read, and for "
            f"images one input, and it has {tensors}"
        )
    return task


def run_filled(engine: Engine, feeds: Feeds) -> Outputs:
    """Return the outputs. Too few samples for the engine are filled up with copies, whose outputs are dropped. Inputs
    that hold sizes get those that the engine is tuned for."""
    count, least = len(next(iter(feeds.values()))), engine.record.profile.batch.min
    tuned = engine.record.interface.holding(engine.record.profile.at("opt"))
    filled = {name: np.resize(array, (max(count, least), *array.shape[1:])) for name, array in feeds.items()}
    outputs = {name: each[:count] for name, each in engine.run(filled | tuned).items()}
    if not all(np.isfinite(each).all() for each in outputs.values()):
        raise EnginewrightError("the engine's outputs are not all finite: `dvc repro` validates it, and says more")
    return outputs

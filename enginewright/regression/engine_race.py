"""Race the engines of two runs in laps, if both still exist: what happens to the machine meanwhile happens to both.

On a shared machine PyTorch may take half as long again for minutes while an engine does not, so ratios say less.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.core.paths import VALIDATION_SAMPLES
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine
from enginewright.engine.folder import RECORD, read_engine
from enginewright.engine.record import EngineRecord
from enginewright.engine.target import require_fits
from enginewright.engine.this_machine import describe_machine
from enginewright.regression.changes import SIDE_BY_SIDE
from enginewright.regression.laps import AFTER, BEFORE, Bind, race_sides
from enginewright.regression.speed_change import SpeedChange, SpeedChanges
from enginewright.speed.machine_lock import whole_machine

Find = Callable[[str], Path]  # the folder of a precision's engine


def race_runs(before: Find, after: Find, precisions: Collection[str], params: Params) -> dict[str, SpeedChanges]:
    """Race the engines of these precisions on this machine, with the samples of the project in this folder."""
    samples = SampleSet.open(VALIDATION_SAMPLES)
    # Standard output is for the result, and not for progress.
    with redirect_stdout(sys.stderr), whole_machine(SIDE_BY_SIDE):
        return {name: race_engines(before(name), after(name), samples, params) for name in precisions}


def race_engines(before: Path, after: Path, samples: SampleSet, params: Params) -> SpeedChanges:
    """Race the engines in two folders on this machine as it is now, whatever artifacts/machine.json says."""
    here = describe_machine(EngineRecord.read(after / RECORD).target.runtime)
    old, new = read_engine(before), read_engine(after)
    for record, folder in ((old, before), (new, after)):
        require_fits(record.target, here, folder)
    if (old.files, old.weights) == (new.files, new.weights):
        return {f"{SIDE_BY_SIDE}, same file": SpeedChange(batch=None, log=0.0, error=0.0)}
    if old.interface != new.interface:
        raise EnginewrightError(f"{new.precision}: the two engines take or give other tensors, so a race says nothing")

    @contextmanager
    def opened(folder: Path) -> Iterator[Bind]:
        with open_engine(folder, here, params.inference) as engine:
            yield engine.bind

    sides = {BEFORE: lambda: opened(before), AFTER: lambda: opened(after)}
    return race_sides(sides, samples.tuned(new.profile), params.benchmark, f"{SIDE_BY_SIDE}, {new.precision}")

"""The measurements of one run of the pipeline, and where to read them: measurements.json."""

import subprocess
from pathlib import Path

from enginewright.accuracy.records import Validation
from enginewright.core.errors import EnginewrightError
from enginewright.core.paths import MEASUREMENTS
from enginewright.core.record import Record
from enginewright.engine.machine import Machine
from enginewright.speed.records import Benchmark


class Measured(Record):
    """The measurements of one precision, which a later run is compared with."""

    precision: str
    engine_bytes: int
    files: dict[str, str]  # the hashes of the engine's files
    executed_as_asked: float
    asked_by: str = ""  # the hash of the graph; empty in a record of an earlier version
    validation: Validation
    benchmark: Benchmark


class Measurements(Record):
    machine: Machine
    precisions: tuple[Measured, ...]


def read_measurements(place: str) -> Measurements:
    """Read the measurements in a reports folder, in a measurements.json, or in a git revision."""
    path = Path(place)
    if path.is_dir():
        if not (path / MEASUREMENTS.name).exists():
            raise EnginewrightError(f"{path} holds no {MEASUREMENTS.name}: give the reports folder of a finished run")
        return Measurements.read(path / MEASUREMENTS.name)
    if path.exists():
        try:
            return Measurements.parse(path.read_bytes(), str(path))
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}; reports are compared by their {MEASUREMENTS.name}") from None
    shown = subprocess.run(["git", "show", "--end-of-options", f"{place}:./{MEASUREMENTS}"], capture_output=True)
    if shown.returncode:
        reason = (shown.stderr.decode(errors="replace").strip().splitlines() or ["git gives no reason"])[0]
        raise EnginewrightError(f"{place} is no file, no folder, and no git revision with {MEASUREMENTS} ({reason})")
    return Measurements.parse(shown.stdout, f"{place}:{MEASUREMENTS}")

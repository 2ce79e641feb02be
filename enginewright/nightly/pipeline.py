"""Run the pipeline as a night does: first what is stale, then all measurements again, then the page with this night."""

import sys
from collections.abc import Collection
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import LOCK, MEASUREMENTS, VERDICT
from enginewright.core.params.all import Params
from enginewright.core.process import start_dvc
from enginewright.measure.changes import Measurements, Verdict
from enginewright.measure.earlier_engines import engines_of, parse_hashes
from enginewright.measure.race import race_runs
from enginewright.measure.speed_change import SpeedChanges
from enginewright.nightly.judgement import Found

MEASURED = ("validate", "benchmark")  # the stages that measure this machine, even if no file has changed


def measure(precisions: Collection[str]) -> Found:
    """Measure these precisions again, or all if none is named, even if nothing changed: the machine may have."""
    print(f"measuring {', '.join(sorted(precisions)) or 'all precisions'}", file=sys.stderr, flush=True)
    stages = [f"{stage}@{name}" for stage in MEASURED for name in sorted(precisions)] or MEASURED
    dvc("repro", "--force", "--single-item", *stages, "race")
    dvc("repro", "report")
    return Found(Measurements.read(MEASUREMENTS), Verdict.read(VERDICT).failures)


def race(good: Path, params: Params, precisions: Collection[str]) -> dict[str, SpeedChanges]:
    """Race the engines of these precisions against the good run's. Report an engine that cannot be raced, and go on."""
    raced: dict[str, SpeedChanges] = {}
    for precision in sorted(precisions):
        try:
            with engines_of(str(good)) as before, engines_of(str(MEASUREMENTS.parent)) as after:
                raced |= race_runs(before, after, [precision], params)
        except (EnginewrightError, OSError) as error:
            print(f"{precision} is not raced against the good run's engine: {error}", file=sys.stderr, flush=True)
    return raced


def engine_hashes() -> dict[str, str]:
    """Return DVC's hash of each engine by precision."""
    return parse_hashes(LOCK.read_bytes(), str(LOCK))


def dvc(*arguments: str, allowed_to_fail: bool = False) -> None:
    """Run DVC to its end. Standard output is for the summary."""
    if start_dvc(*arguments).wait() and not allowed_to_fail:
        raise EnginewrightError(f"`dvc {' '.join(arguments)}` failed, as said above; the night is not recorded")

"""The pipeline as a night runs it: what is stale, then every measurement anew, then the page with this night in it."""

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.core.params.all import Params
from enginery.core.paths import LOCK, MEASUREMENTS, VERDICT
from enginery.regression.earlier_engines import engines_of, hashes_in
from enginery.regression.engine_race import race_runs
from enginery.regression.measurements import Measurements
from enginery.regression.nightly.judgement import Found
from enginery.regression.speed_change import SpeedChanges
from enginery.regression.verdict import Verdict

WRITTEN_BY_A_RUN = (":!reports", ":!history", ":!dvc.lock")
MEASURED = ("validate", "benchmark")  # the stages that find out anew, from the same files, what this machine delivers


def bring_up_to_date() -> None:
    """All but the gate: a red one is a finding of the night, not its end."""
    dvc("repro", "report")


def measure(precisions: Collection[str]) -> Found:
    """Even if nothing changed, for the question is whether this machine still delivers; of all, if none is named."""
    print(f"measuring {', '.join(sorted(precisions)) or 'all precisions'}", file=sys.stderr, flush=True)
    stages = [f"{stage}@{name}" for stage in MEASURED for name in sorted(precisions)] or MEASURED
    dvc("repro", "--force", "--single-item", *stages)
    dvc("repro", "report")
    return Found(Measurements.read(MEASUREMENTS), Verdict.read(VERDICT).failures)


def race(good: Path, params: Params, precisions: Collection[str]) -> dict[str, SpeedChanges]:
    """The engines of these precisions against those of the good run. One that cannot be raced is left out, and told."""
    raced: dict[str, SpeedChanges] = {}
    for precision in sorted(precisions):
        try:
            with engines_of(str(good)) as before, engines_of(str(MEASUREMENTS.parent)) as after:
                raced |= race_runs(before, after, [precision], params)
        except (EngineryError, OSError) as error:
            print(f"{precision} is not raced against the good run's engine: {error}", file=sys.stderr, flush=True)
    return raced


def engines() -> dict[str, str]:
    """DVC's hash of each, by precision."""
    return hashes_in(LOCK.read_text(), str(LOCK))


def finish(found: Found) -> None:
    """The report draws the history; then the gate has its say, which must be what was found."""
    red = any(found.broken.values())
    dvc("repro", allowed_to_fail=red)


def revision() -> str:
    """Of the code that runs; `-dirty` if files differ from it, other than those that a run writes."""
    found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    if found.returncode:
        raise EngineryError(f"a night is recorded with its git revision, but git has none: {found.stderr.strip()}")
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", *WRITTEN_BY_A_RUN]).returncode
    return found.stdout.strip() + ("-dirty" if changed else "")


def dvc(*arguments: str, allowed_to_fail: bool = False) -> None:
    """What it says goes to standard error: standard output is for the summary."""
    done = subprocess.run([sys.executable, "-m", "dvc", *arguments], stdout=sys.stderr)
    if done.returncode and not allowed_to_fail:
        raise EngineryError(f"`dvc {' '.join(arguments)}` failed, as said above; the night is not recorded")

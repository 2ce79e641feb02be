"""Run the pipeline with all measurements made again, compare with the good run, and record and print the result.

Exits 0 if the night is good; 5 if the gate is red; 3 on a confirmed regression; 6 if there are too few samples to be
sure of a threshold, where validation.must_be_sure asks for it; 4 if neither, but the machine, or PyTorch, was not as in
the good run; 1 on an error. docs/ci.md tells more.
"""

import argparse
import os
import sys
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from enginewright.core import version
from enginewright.core.errors import EnginewrightError, sentence_of
from enginewright.core.files import LOCK, MEASUREMENTS, SUMMARY, VERDICT
from enginewright.core.params.all import Params
from enginewright.core.process import start_dvc
from enginewright.core.text import confidence
from enginewright.measure.comparison import SpeedChanges, conclusion
from enginewright.measure.history import GOOD, History, Night, engines_of, parse_hashes
from enginewright.measure.race import race_runs
from enginewright.measure.records import Measurements, Verdict
from enginewright.nightly.judgement import Found, Judgement, Status, judge
from enginewright.nightly.summary import sentence, write_summary

ATTEMPTS = "how often to measure again what is not comparable, 3 if not given, 10 at most"
MEASURED = ("validate", "benchmark")  # the stages that measure this machine, even if no file has changed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m enginewright.nightly", description=__doc__)
    parser.add_argument("--confidence", type=confidence, default=0.99, help="of all comparisons together, 0.99")
    parser.add_argument("--attempts", type=int, choices=range(11), default=3, metavar="N", help=ATTEMPTS)
    chosen = parser.parse_args()
    try:
        sys.exit(run_night(chosen.confidence, chosen.attempts))
    except KeyboardInterrupt:
        sys.exit("nightly: interrupted; the night is not recorded")
    except Exception as error:
        if sentence := sentence_of(error):
            sys.exit(f"nightly: {sentence}")
        raise


def run_night(confidence: float, attempts: int) -> Status:
    start, revision = datetime.now(UTC).replace(microsecond=0), version.revision()
    _dvc("report")  # not the gate: if it is red, this is a result of the night and must not end it
    params = Params.read()
    history = History.here(params)
    race = partial(_race, history.folder / GOOD, params)
    judgement = judge(_measure, race, history, confidence, attempts)
    record(judgement, history, lambda: parse_hashes(LOCK.read_bytes(), str(LOCK)), start, revision)
    # The report with this night, and the gate, which may fail only if a threshold broke.
    failed = any(judgement.found.broken.values()) or bool(judgement.unsure)
    _dvc(allowed_to_fail=failed)
    title, report = history.setting.title, SUMMARY.read_text(encoding="utf-8")
    summary = write_summary(judgement, history.nights(), title, confidence, report)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(summary)
    else:
        print(summary)
    print(sentence(judgement), file=sys.stderr)
    return judgement.status


def _measure(precisions: Collection[str]) -> Found:
    """Measure these precisions again, or all if none is named, even if nothing changed: the machine may have."""
    print(f"measuring {', '.join(sorted(precisions)) or 'all precisions'}", file=sys.stderr, flush=True)
    stages = [f"{stage}@{name}" for stage in MEASURED for name in sorted(precisions)] or MEASURED
    _dvc("--force", "--single-item", *stages, "race")
    _dvc("report")
    return Found(Measurements.read(MEASUREMENTS), Verdict.read(VERDICT).failures)


def _race(good: Path, params: Params, precisions: Collection[str]) -> dict[str, SpeedChanges]:
    """Race the engines of these precisions against the good run's. Report an engine that cannot be raced, and go on."""
    raced: dict[str, SpeedChanges] = {}
    for precision in sorted(precisions):
        try:
            with engines_of(str(good)) as before, engines_of(str(MEASUREMENTS.parent)) as after:
                raced |= race_runs(before, after, [precision], params)
        except (EnginewrightError, OSError) as error:
            print(f"{precision} is not raced against the good run's engine: {error}", file=sys.stderr, flush=True)
    return raced


def _dvc(*arguments: str, allowed_to_fail: bool = False) -> None:
    """Make these stages, or all. Standard output is for the summary."""
    command = "repro", *arguments
    if start_dvc(*command).wait() and not allowed_to_fail:
        raise EnginewrightError(f"`dvc {' '.join(command)}` failed, as said above; the night is not recorded")


def record(
    judgement: Judgement,
    history: History,
    engine_hashes: Callable[[], Mapping[str, str]],
    start: datetime,
    revision: str,
) -> None:
    """Write a night to the history, with a line for each precision."""
    measurements, broken = judgement.found
    if judgement.becomes_good_run:
        history.keep(measurements, engine_hashes())
    nights = []
    for entry in measurements.precisions:
        changes = [change for change in judgement.changes if change.precision == entry.precision]
        night = Night(
            date=start,
            revision=revision,
            runtime_version=measurements.machine.runtime_version,
            driver=measurements.machine.driver,
            precision=entry.precision,
            ratios=entry.benchmark.ratios,
            accuracy=entry.validation.main.engine if entry.validation.main else None,
            metric=entry.validation.metric,
            relative_error=entry.validation.engine_against_pytorch.relative,
            engine_bytes=entry.engine_bytes,
            outcome=conclusion(changes) if changes else None,
            broken=broken.get(entry.precision, ()),
            good=judgement.status == Status.GOOD,
            kept=judgement.becomes_good_run,
        )
        nights.append(night)
    history.append(nights)

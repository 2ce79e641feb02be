"""Run the pipeline with all measurements made again, compare with the good run, and record and print the result.

Exits 0 if the night is good; 5 if the gate is red; 3 on a confirmed regression; 6 if there are too few samples to be
sure of a threshold, where validation.must_be_sure asks for it; 4 if neither, but the machine, or PyTorch, was not as in
the good run; 1 on an error. docs/ci.md tells more.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from enginewright.core import version
from enginewright.core.errors import sentence_of
from enginewright.core.files import HISTORY, MACHINE, SUMMARY
from enginewright.core.params.all import Params
from enginewright.core.text import confidence
from enginewright.engine.machine import Machine
from enginewright.measure.changes import conclusion
from enginewright.measure.history import GOOD, History, Night, Setting
from enginewright.nightly import pipeline
from enginewright.nightly.judgement import Judgement, Measure, Race, Status, judge
from enginewright.nightly.summary import sentence, write_summary

ATTEMPTS = "how often to measure again what is not comparable, 3 if not given, 10 at most"


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
    pipeline.dvc("repro", "report")  # not the gate: if it is red, this is a result of the night and must not end it
    params = Params.read()
    setting = Setting.of(Machine.read(MACHINE), params)
    history = History(HISTORY / setting.folder, setting)
    race = partial(pipeline.race, history.folder / GOOD, params)
    judgement = record_night(
        history, pipeline.measure, race, pipeline.engine_hashes, start, revision, confidence, attempts
    )
    # The report with this night, and the gate, which may fail only if a threshold broke.
    failed = any(judgement.found.broken.values()) or bool(judgement.unsure)
    pipeline.dvc("repro", allowed_to_fail=failed)
    summary = write_summary(judgement, history.nights(), setting.title, confidence, SUMMARY.read_text(encoding="utf-8"))
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(summary)
    else:
        print(summary)
    print(sentence(judgement), file=sys.stderr)
    return judgement.status


def record_night(
    history: History,
    measure: Measure,
    race: Race,
    engine_hashes: Callable[[], Mapping[str, str]],
    start: datetime,
    revision: str,
    confidence: float,
    attempts: int,
) -> Judgement:
    """Judge a night, and write it to the history."""
    history.nights()  # first, because a broken file must not cost a night
    judgement = judge(measure, race, history.good(), confidence, attempts)
    if judgement.becomes_good_run:
        history.keep(judgement.found.measurements, engine_hashes())
    history.append(lines_of(judgement, start, revision))
    return judgement


def lines_of(judgement: Judgement, start: datetime, revision: str) -> list[Night]:
    measurements, broken = judgement.found
    changes = {
        entry.precision: [change for change in judgement.changes if change.precision == entry.precision]
        for entry in measurements.precisions
    }
    return [
        Night(
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
            outcome=conclusion(changes[entry.precision]) if changes[entry.precision] else None,
            broken=broken.get(entry.precision, ()),
            good=judgement.status == Status.GOOD,
            kept=judgement.becomes_good_run,
        )
        for entry in measurements.precisions
    ]

"""Run the pipeline with all measurements made again, compare with the good run, and record and print the result. Exits
0 if the night is good; docs/reference/cli.md lists other exit codes."""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import pandas as pd

from enginewright.core import installing
from enginewright.core.errors import EnginewrightError, errors_in_words
from enginewright.core.files import CONVERTED, ENGINES, HISTORY, LOCK, MEASUREMENTS, SUMMARY, VERDICT, templates_in
from enginewright.core.params.all import Params
from enginewright.core.process import start_dvc
from enginewright.core.text import confidence, last_line
from enginewright.measure.comparison import SIDE_BY_SIDE, Change, SpeedChanges, conclusion
from enginewright.measure.history import GOOD, History, Night, engines_of, parse_hashes
from enginewright.measure.race import race_runs
from enginewright.measure.records import Measurements, Outcome, Verdict
from enginewright.nightly.judgement import Found, Judgement, Status, judge
from enginewright.precision.cure import CURE

MEASURED = ("validate", "benchmark")  # the stages that measure this machine, even if no file has changed
NIGHTS_SHOWN = 14


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m enginewright.nightly", description=__doc__)
    parser.add_argument("--confidence", type=confidence, default=0.99, help="of all comparisons together, 0.99")
    attempts = "how often to measure again what is not comparable, 3 if not given, 10 at most"
    parser.add_argument("--attempts", type=int, choices=range(11), default=3, metavar="N", help=attempts)
    chosen = parser.parse_args()
    with errors_in_words("nightly: ", interrupted="the night is not recorded"):
        sys.exit(run_night(chosen.confidence, chosen.attempts))


def run_night(confidence: float, attempts: int) -> Status:
    start, revision = datetime.now(timezone.utc).replace(microsecond=0), installing.revision()
    _dvc("build", "reference")  # and what they need; what measures engines comes after, once
    params = Params.read()
    history = History.here(HISTORY, params)
    race = partial(_race, history.folder / GOOD, params)
    judgement = judge(_measure, race, history, confidence, attempts)
    record(judgement, history, lambda: parse_hashes(LOCK.read_bytes(), str(LOCK)), start, revision)
    # The report with this night, and the gate, which may fail only if a threshold broke.
    _dvc(allowed_to_fail=any(judgement.found.broken.values()) or bool(judgement.unsure))
    title, report = history.setting.title, "\n\n".join([*without_cures(), SUMMARY.read_text(encoding="utf-8")])
    summary = write_summary(judgement, history.nights(), title, confidence, report)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(summary)
    else:
        print(summary)
    print(sentence(judgement), file=sys.stderr)
    return judgement.status


def _measure(precisions: Collection[str], why: str) -> Found:
    """Measure these precisions, or all if none is named, even if nothing changed: the machine may have."""
    print(f"measuring {', '.join(sorted(precisions)) or 'all precisions'}{why}", file=sys.stderr, flush=True)
    stages = [f"{stage}@{name}" for stage in MEASURED for name in sorted(precisions)] or MEASURED
    _dvc("--force", "--single-item", *stages, "race")
    _dvc("report")  # not the gate: if it is red, this is a result of the night and must not end it
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


def without_cures() -> list[str]:
    """Build each engine that is cured without its cure, and return what is found, a sentence each."""
    cured = sorted(path.parent.name for path in CONVERTED.glob(f"*/{CURE}"))
    command = [sys.executable, "-m", "enginewright.cli", "cure", "--without"]
    tried = [subprocess.run([*command, ENGINES / name], stdout=subprocess.PIPE, text=True) for name in cured]
    return [last_line(each.stdout) for each in tried]


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
        main, changes = entry.validation.main, [one for one in judgement.changes if one.precision == entry.precision]
        night = Night(
            date=start,
            revision=revision,
            runtime_version=measurements.machine.runtime_version,
            driver=measurements.machine.driver,
            precision=entry.precision,
            ratios=entry.benchmark.ratios,
            accuracy=main.engine if main else None,
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


# Say what a night has found.


def sentence(judgement: Judgement) -> str:
    """Say in one sentence whether the night is good, and why."""
    changes = judgement.changes
    broken = "; ".join(f"{name}: {', '.join(why)}" for name, why in judgement.found.broken.items() if why)
    worse, better = (_named(changes, outcome) for outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT))
    reasons = {one.precision: one.why for one in reversed(changes) if one.why and one.outcome == Outcome.NOT_COMPARABLE}
    unknown = "; ".join(f"{name}: {reasons[name].removesuffix(': measure again')}" for name in sorted(reasons))
    red = [f"the gate is red ({broken})"] if broken else []
    red += [f"a confirmed regression ({worse})"] if worse else []
    if red:
        return f"Red: {', and '.join(red)}."
    if judgement.status == Status.UNSURE:
        few = "; ".join(f"{name}: {', '.join(why)}" for name, why in judgement.unsure.items())
        return f"Neither good nor red: there are not enough samples to be sure ({few})."
    if judgement.status == Status.NOT_COMPARABLE:
        kept = "; it stands in for a good run until there is one" if judgement.becomes_good_run else ""
        return f"Neither good nor red: it could not be compared ({unknown}){kept}."
    if not changes:
        return "Good: there is no good run to compare with; it becomes the good run."
    said = [f"better and confirmed ({better})"] if better else []
    said += [f"not comparable with the good run ({unknown})"] if unknown else []
    kept = "; it becomes the good run" if judgement.becomes_good_run else ""
    return f"Good: {', '.join(said) or 'no change'}{kept}."


def _named(changes: Sequence[Change], outcome: Outcome) -> str:
    """Name each precision with this outcome, its first figure, and how many more there are: the table has them."""
    figures: dict[str, list[str]] = {}
    for change in changes:
        if change.outcome == outcome:
            figures.setdefault(change.precision, []).append(f"{change.figure} {_written(change.change, '+.1%')}")
    return "; ".join(
        f"{precision}: {first}" + (f" and {len(others)} more" if others else "")
        for precision, (first, *others) in figures.items()
    )


def write_summary(judgement: Judgement, nights: Sequence[Night], setting: str, confidence: float, report: str) -> str:
    """Write the summary in Markdown. `nights` end with this one; `report` is the pipeline's own summary."""
    tonight = nights[-1]
    where = [os.environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")]
    facts = {
        "sentence": sentence(judgement),
        "setting": setting,
        "tonight": tonight,
        "last_good": next((night for night in reversed(nights) if night.good), None),
        "good_run": next((night for night in reversed(nights) if night.kept and night.date != tonight.date), None),
        "changes": change_table(judgement.changes) if judgement.changes else None,
        "confidence": confidence,
        "raced": any(change.figure.startswith(SIDE_BY_SIDE) for change in judgement.changes),
        "nights": night_table(nights),
        "address": "{}/{}/actions/runs/{}".format(*where) if all(where) else None,
        # Headings move one level down. Pictures go, because a job summary cannot show the files beside the report.
        "report": re.sub(r"(?m)^(#+) ", r"#\1 ", re.sub(r"(?m)^!\[.*\n", "", report)),
    }
    return templates_in(Path(__file__).parent).get_template("summary.md.j2").render(facts)


def change_table(changes: Sequence[Change]) -> pd.DataFrame:
    """Make a table of all changes, with those rows first that are not 'no change'."""
    return pd.DataFrame(
        {
            "precision": change.precision,
            "figure": change.figure,
            "good run": _written(change.before, ".4g"),
            "this night": _written(change.after, ".4g"),
            "change": _written(change.change, "+.1%"),
            "chance": _written(change.slack, ".1%"),
            "verdict": f"{change.outcome}: {change.why}" if change.why else str(change.outcome),
        }
        for change in sorted(changes, key=lambda change: change.outcome == Outcome.NO_CHANGE)
    ).set_index("precision")


def _written(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def night_table(nights: Sequence[Night]) -> pd.DataFrame:
    """Make a table of the last nights, a row each, with the verdict on each precision unless it was 'no change'."""
    rows: dict[str, dict[str, str]] = {}
    for night in nights:
        row = rows.setdefault(f"{night.date:%Y-%m-%d %H:%M}", {"revision": night.revision})
        verdict = "" if night.verdict == Outcome.NO_CHANGE else f" ({night.verdict})"
        row[night.precision] = f"{night.speed():.3g}{verdict}"
        row["night"] = ("good" if night.good else "not good") + (", kept" if night.kept else "")
    table = pd.DataFrame.from_dict(dict(list(rows.items())[-NIGHTS_SHOWN:]), orient="index").fillna("")
    return table[[*(name for name in table if name != "night"), "night"]].rename_axis("date")

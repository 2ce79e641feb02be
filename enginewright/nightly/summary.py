"""Write the summary of a night: one sentence, the changes since the good run, earlier nights, the report's tables."""

import os
import re
from collections.abc import Sequence

import pandas as pd

from enginewright.measure.comparison import SIDE_BY_SIDE, Change
from enginewright.measure.history import Night, last_kept
from enginewright.measure.records import Outcome
from enginewright.nightly.judgement import Judgement, Status

NIGHTS_SHOWN = 14


def sentence(judgement: Judgement) -> str:
    """Say in one sentence whether the night is good, and why."""
    changes = judgement.changes
    broken = "; ".join(f"{name}: {', '.join(why)}" for name, why in judgement.found.broken.items() if why)
    worse, better = (_named(changes, outcome) for outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT))
    reasons = {one.precision: one.why for one in reversed(changes) if one.why and one.outcome == Outcome.NOT_COMPARABLE}
    unknown = "; ".join(f"{precision}: {reasons[precision]}" for precision in sorted(reasons))
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


def write_summary(judgement: Judgement, nights: Sequence[Night], setting: str, confidence: float, report: str) -> str:
    """Write the summary in Markdown. `nights` end with this one; `report` is the pipeline's own summary."""
    tonight = nights[-1]
    good_night = last_kept([night for night in nights if night.date != tonight.date])
    parts = [f"# {sentence(judgement)}", f"{setting}; revision {tonight.revision}, {tonight.date:%Y-%m-%d %H:%M} UTC."]
    if judgement.status != Status.GOOD:
        last = next((f"{night.date:%Y-%m-%d}" for night in reversed(nights) if night.good), "none so far")
        parts.append(f"The last good night: {last}.")
    if good_night:
        parts += ["## Against the good run", _since_good_run(good_night, tonight)]
    if judgement.changes:
        parts.append(_markdown(change_table(judgement.changes)))
        parts.append(
            f"What differs by more than chance allows, at a confidence of {confidence:.0%} for all rows together, was "
            "measured once more, and counts only if it was seen again."
        )
    if any(change.figure.startswith(SIDE_BY_SIDE) for change in judgement.changes):
        parts.append(
            "Figures side by side are milliseconds of races against the good run's engine, which decide if ratios to "
            "PyTorch could not be compared. An engine that is still the same file is not raced."
        )
    parts += ["## Nights", "Speeds are times PyTorch, the mean of the batch sizes.", _markdown(night_table(nights))]
    if address := run_address():
        parts.append(f"[The page, the tables and the pictures]({address}#artifacts) of this night.")
    # Headings move one level down. Pictures go, because a job summary cannot show the files beside the report.
    tables = re.sub(r"(?m)^(#+) ", r"#\1 ", re.sub(r"(?m)^!\[.*\n", "", report))
    return "\n\n".join([*parts, tables])


def change_table(changes: Sequence[Change]) -> pd.DataFrame:
    """Make a table of all changes, with those rows first that are not 'no change'."""
    return pd.DataFrame(
        [
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
        ]
    ).set_index("precision")


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


def run_address() -> str | None:
    """Return the address of the workflow run, on GitHub."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (os.environ.get(name) for name in names)
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else None


def _since_good_run(good_night: Night, tonight: Night) -> str:
    parts = [f"The good run is of {good_night.date:%Y-%m-%d %H:%M}"]
    was, now = (night.revision.removesuffix("-dirty") for night in (good_night, tonight))
    if was != now:
        parts.append(f"`git log --oneline {was}..{now}` tells what changed since")
    for name in ("runtime_version", "driver"):
        then, today = getattr(good_night, name), getattr(tonight, name)
        if then != today:
            parts.append(f"{name.replace('_', ' ')} {then} then, {today} now")
    return f"{'; '.join(parts)}."


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


def _written(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _markdown(table: pd.DataFrame) -> str:
    return str(table.to_markdown(disable_numparse=True))

"""One page for all targets: model by precision by target, and what to take for which limit."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from enginewright.report.notes import Note
from enginewright.report.page.render import open_templates
from enginewright.report.tables import device
from enginewright.targets.answer import NOT_YET, Answer, Measured, cost_of, frontier, offers_of
from enginewright.targets.file import Fleet

COLUMNS = (
    "verdict", "ms at the least batch", "accuracy", "loss (95 % interval)", "images per second", "cost of a million"
)  # fmt: skip
NOT_TOLD = "not told"


def render_fleet(fleet: Fleet, models: Mapping[str, Sequence[Answer]]) -> str:
    """`models` has the answers of each model, by a title."""
    facts = {
        "priced": any(target.price_per_hour for target in fleet.targets),
        "unpriced": any(target.price_per_hour is None for target in fleet.targets),
        "models": [
            {
                "title": title,
                "rows": all_rows(fleet, answers),
                "choices": _choices(fleet, answers),
                "reasons": _reasons(answers),
            }
            for title, answers in models.items()
        ],
        "machines": _machines(fleet, [answer for answers in models.values() for answer in answers]),
    }
    return open_templates(Path(__file__).parent).get_template("fleet.html").render(facts)


def as_text(title: str, fleet: Fleet, answers: Sequence[Answer]) -> str:
    """Write the table of a model for a terminal; reasons follow below it."""
    written = all_rows(fleet, answers).to_markdown(tablefmt="simple", disable_numparse=True)
    return "\n".join([title, written, *(f"{note.title}: {note.text}" for note in _reasons(answers))])


def all_rows(fleet: Fleet, answers: Sequence[Answer]) -> pd.DataFrame:
    """Give each precision on each target, and each target that failed."""
    rows = {}
    for answer in answers:
        if answer.failed:
            rows[answer.target] = {"verdict": _state(answer)}
        else:
            price = fleet.price(answer.target)
            rows |= {f"{one.precision} on {answer.target}": _row(one, price) for one in answer.precisions}
    filled = [dict.fromkeys(COLUMNS, "-") | row for row in rows.values()]
    return pd.DataFrame(filled, index=pd.Index(rows, name="precision and target"))


def _state(answer: Answer) -> str:
    return NOT_YET if answer.failed.startswith(NOT_YET) else "failed"


def _row(one: Measured, price: float | None) -> dict[str, str]:
    if not one.speeds:
        return {"verdict": one.verdict}
    first = min(one.speeds, key=lambda speed: (speed.batch, speed.requests))
    best = max(one.speeds, key=lambda speed: speed.images_per_second)
    cost = cost_of(best.images_per_second, price)
    return {
        "verdict": one.verdict,
        "ms at the least batch": f"{first.p50:.3g} (batch {first.batch})",
        "accuracy": "-" if one.result is None else one.result.written(one.result.engine),
        "loss (95 % interval)": "-" if one.result is None else one.result.drop_with_interval,
        "images per second": f"{best.images_per_second:,.0f} (batch {best.batch}, {best.requests} in flight)",
        "cost of a million": NOT_TOLD if cost is None else f"{cost:.3g}",
    }


def _reasons(answers: Sequence[Answer]) -> list[Note]:
    """Say of each row that has no figures, or whose figures are to be doubted, why."""
    notes = []
    for answer in answers:
        if answer.failed:
            earlier = f" Its figures of {answer.date:%Y-%m-%d} stay in its file." if answer.date else ""
            text = f"{answer.failed.removeprefix(f'{NOT_YET}: ').rstrip('.')}.{earlier}"
            notes.append((f"{answer.target} {_state(answer)}", text, _state(answer)))
        else:
            titled = ((f"{one.precision} on {answer.target}, {one.verdict}", one) for one in answer.precisions)
            notes += [(title, one.why, one.verdict) for title, one in titled if one.why]
    return [Note(title, text, "failed" if state == "failed" else "other") for title, text, state in notes]


def _choices(fleet: Fleet, answers: Sequence[Answer]) -> pd.DataFrame:
    rows = [
        {
            "take": one.title,
            "how": one.how,
            "within ms": f"{one.latency:.3g}",
            "images per second": f"{one.speed.images_per_second:,.0f}",
            "cost of a million": NOT_TOLD if one.cost is None else f"{one.cost:.3g}",
        }
        for one in frontier(offers_of(answers, fleet))
    ]
    return pd.DataFrame(rows).set_index("take") if rows else pd.DataFrame()


def _machines(fleet: Fleet, answers: Sequence[Answer]) -> pd.DataFrame:
    """Say what each target is. Where it answered about several models, the last answer counts."""
    latest = {one.target: one for one in sorted(answers, key=lambda one: str(one.date)) if one.machine and one.date}
    rows = {}
    for target in fleet.targets:
        rows[target.name] = dict.fromkeys(("node", "device", "runtime", "answered", "revision"), "-")
        if (found := latest.get(target.name)) and found.machine and found.date:
            rows[target.name] = {
                "node": found.node,
                "device": device(found.machine),
                "runtime": f"{found.machine.runtime} {found.machine.runtime_version}",
                "answered": f"{found.date:%Y-%m-%d %H:%M}",
                "revision": found.revision,
            }
        price = "-" if target.price_per_hour is None else f"{target.price_per_hour:g}"
        rows[target.name]["price per hour"] = price
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("target")

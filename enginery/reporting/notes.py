"""What a reader must know before the figures are believed: what failed, ran as something else, or was disturbed."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from enginery.core.records import PYTORCH
from enginery.reporting.evidence import Evidence, Findings
from enginery.reporting.noise import noisy_races, slowed
from enginery.reporting.wording import RUNTIME_TITLES


class Note(NamedTuple):
    title: str
    text: str
    kind: Literal["failed", "noisy", "other"] = "other"


def notes_on(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> list[Note]:
    runtime = RUNTIME_TITLES[findings.machine.runtime]
    notes = _on_the_reference(findings.precisions[0].validation.reference)
    for entry in findings.precisions:
        notes += _on_execution(entry, runtime) + _on_failures(entry, failures.get(entry.precision, ()))
    notes += [
        Note(f"Noisy, {entry.precision} at batch {batch}", f"{'; '.join(why)}.", "noisy")
        for entry, batch, why in noisy_races(findings)
    ]
    notes += [
        Note(
            f"A slower machine, {precision}",
            f"by its pace, {times:.2f} times as slow as beside another precision. Milliseconds and ratios are of that "
            f"machine; `dvc repro --force --single-item benchmark@{precision}` measures again.",
        )
        for precision, times in slowed(findings).items()
    ]
    return notes


def _on_the_reference(made_by: str) -> list[Note]:
    if made_by == PYTORCH:
        return []
    text = f"the model came as an ONNX file: wherever PyTorch is named, it is {made_by} running that file as written."
    return [Note("No PyTorch", text)]


def _on_execution(entry: Evidence, runtime: str) -> list[Note]:
    precision, notes = entry.precision, []
    if not entry.is_known:
        text = (
            "the engine was built where it cannot run. "
            f"Build it here to see its layers: `dvc repro --force --single-item build@{precision}`, then `dvc repro`."
        )
        notes.append(Note(f"What {precision} executes is not known", text))
    if not entry.is_what_it_says:
        executed = next(iter(entry.engine.executed), "nothing")
        text = (
            f"{runtime} executed none of it in {precision} here. "
            f"Its accuracy is that of its graph, its speed is {executed}'s."
        )
        notes.append(Note(f"{precision} ran as {executed}", text))
    return notes


def _on_failures(entry: Evidence, failures: tuple[str, ...]) -> list[Note]:
    blamed = f"; the {entry.validation.loss_comes_from} is to blame"
    return [
        Note(f"{entry.precision} failed", f"{line}{blamed if line in entry.validation.broken else ''}.", "failed")
        for line in failures
    ]

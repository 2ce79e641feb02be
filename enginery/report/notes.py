"""What a reader must know before the figures are believed: what failed, lost to PyTorch itself, or was disturbed."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from enginery.core.params.benchmark import NUMBERS
from enginery.core.runtimes import RUNTIMES
from enginery.model.records import PYTORCH
from enginery.report.evidence import Evidence, Findings
from enginery.report.noise import Noise, meanwhile, noise_at, noise_of, reasons, slowed
from enginery.report.tables import BY_ITSELF
from enginery.report.verdict import AS_FAST, recommend
from enginery.speed.records import Ratio, baseline_title


class Note(NamedTuple):
    title: str
    text: str
    kind: Literal["failed", "other"] = "other"


def notes_on(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> list[Note]:
    runtime = RUNTIMES[findings.machine.runtime].title
    notes = _on_the_reference(findings.precisions[0].validation.reference)
    for entry in findings.precisions:
        notes += _on_execution(entry, runtime) + _on_failures(entry, failures.get(entry.precision, ()))
    return notes + _on_faster_baselines(findings) + _on_company(findings) + _on_noise(findings)


def noise_by_batch(findings: Findings) -> list[Note]:
    """Each batch size of each precision at which a ratio is noisy, with all the reasons."""
    return [
        Note(f"{entry.precision} at batch {batch}", f"{_told(noise)}.")
        for entry in findings.precisions
        for batch in findings.batches
        if (noise := noise_at(findings, entry, batch)).noisy
    ]


def _on_faster_baselines(findings: Findings) -> list[Note]:
    """The best engine need not be worth its deployment: compiled or in half precision, PyTorch itself can win."""
    chosen, notes = recommend(findings), []
    if chosen is None:
        return []
    for baseline in findings.baselines:
        ratios = [chosen.ratio(batch, baseline) for batch in findings.batches]
        if ahead := [f"{1 / ratio.median:.2f} times at batch {ratio.batch}" for ratio in ratios if _is_slower(ratio)]:
            untold = " How well it answers was not measured." if set(baseline.split("+")) & set(NUMBERS) else ""
            title = f"{baseline_title(baseline)} is faster than {chosen.precision}"
            notes.append(Note(title, f"{', '.join(ahead)}.{untold}"))
    return notes


def _on_company(findings: Findings) -> list[Note]:
    """What a graph replays takes longer beside another contender than where the engine is deployed by itself."""
    chosen = recommend(findings)
    if chosen is None or not chosen.benchmark.cuda_graph or meanwhile(findings, chosen):
        return []
    timed = {
        batch: (chosen.latency(batch).compute, alone) for batch, alone in chosen.benchmark.isolated_compute.items()
    }
    ahead = [
        f"{alone:.3f} ms at batch {batch} ({beside:.3f} in the race)"
        for batch, (beside, alone) in timed.items()
        if beside and beside > AS_FAST * alone
    ]
    text = f"there its compute takes {', '.join(ahead)}. Its speed-ups are those of the race."
    return [Note(f"{chosen.precision} is faster {BY_ITSELF}", text)] if ahead else []


def _is_slower(ratio: Ratio) -> bool:
    return AS_FAST * ratio.high < 1


def noisy_as_quoted(findings: Findings, entry: Evidence) -> bool:
    """Whether the one speed that is quoted of it, and that the verdict rests on, is noisy."""
    return bool(reasons(findings, entry, entry.ratio(findings.tuned_batch, findings.baselines[0])))


def _on_noise(findings: Findings) -> list[Note]:
    """A sentence for each precision whose quoted speed is noisy, however much of it is; one for what else is."""
    noisy = [(entry, noise) for entry in findings.precisions if (noise := noise_of(findings, entry)).noisy]
    notes = [
        Note(f"Noisy, {entry.precision}", f"{_told(noise)}.{_again(findings, entry.precision)}")
        for entry, noise in noisy
        if noisy_as_quoted(findings, entry)
    ]
    elsewhere = [entry for entry, _ in noisy if not noisy_as_quoted(findings, entry)]
    return notes + ([_noisy_elsewhere(findings, elsewhere)] if elsewhere else [])


def _noisy_elsewhere(findings: Findings, entries: Sequence[Evidence]) -> Note:
    quoted, names = findings.tuned_batch, ", ".join(entry.precision for entry in entries)
    noisy = [batch for batch in findings.batches if any(noise_at(findings, entry, batch).noisy for entry in entries)]
    places = [f"{batch}" + (" (against other baselines)" if batch == quoted else "") for batch in noisy]
    verdict = f"the verdict is at batch {quoted} against {baseline_title(findings.baselines[0])}"
    return Note(f"Noisy at batch {', '.join(places)}", f"{names}; {verdict}, and does not rest on it.")


def _again(findings: Findings, precision: str) -> str:
    if precision not in slowed(findings):
        return ""
    again = f"`dvc repro --force --single-item benchmark@{precision}` measures again"
    return f" Milliseconds are of that machine, too; {again}."


def _told(noise: Noise) -> str:
    count = f"{noise.noisy} of {noise.ratios} ratios: " if noise.ratios > 1 else ""
    return count + "; ".join(noise.why)


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
        text = (
            f"{runtime} executed none of it in {precision} here. "
            f"Its accuracy is that of its graph; its speed says nothing of {precision}."
        )
        notes.append(Note(f"{precision} ran as {entry.engine.ran_as}", text))
    return notes


def _on_failures(entry: Evidence, failures: tuple[str, ...]) -> list[Note]:
    blamed = f"; the {entry.validation.loss_comes_from} is to blame"
    return [
        Note(f"{entry.precision} failed", f"{line}{blamed if line in entry.validation.broken else ''}.", "failed")
        for line in failures
    ]

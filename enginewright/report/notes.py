"""Notes to read before believing the figures: what failed, lost to PyTorch itself, or was disturbed."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from enginewright.core.facts import PYTORCH, QUANTIZED, RUNTIMES
from enginewright.core.params.measuring import NUMBER_FORMATS
from enginewright.core.text import first_few
from enginewright.data.sample_set import Padding
from enginewright.engine.record import short_name
from enginewright.measure.speed_records import Ratio, baseline_title
from enginewright.precision.mixing.records import Mix, in_words
from enginewright.report.evidence import Evidence, Findings
from enginewright.report.tables import OWN_PROCESS
from enginewright.report.verdict import AS_FAST, is_faster, recommend
from enginewright.report.where_time_goes import compare, losses, what_is_left
from enginewright.report.wording import Noise, machine_reasons, noise_at

# TensorRT for RTX executes only this in a quantized precision, says NVIDIA's support matrix.
EXECUTED_BY_RTX = {"int8": "the weights of matrix products alone", "fp8": "matrix products alone"}

NOT_RECOMMENDED = " So it is not recommended, however it was timed here."


class Note(NamedTuple):
    title: str
    text: str
    kind: Literal["failed", "other"] = "other"


def notes_on(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> list[Note]:
    runtime = RUNTIMES[findings.machine.runtime].title
    first = findings.precisions[0].validation
    notes = _on_the_reference(first.reference) + _on_preparation(first.doubt)
    notes += _on_texts(first.padding) + _on_boxes(findings.precisions[0])
    for entry in findings.precisions:
        notes += _on_execution(entry, runtime)
        for line in failures.get(entry.precision, ()):
            blamed = f"; the {entry.validation.loss_comes_from} is to blame" if line in entry.validation.broken else ""
            notes.append(Note(f"{entry.precision} failed", f"{line}{blamed}.", "failed"))
    for name, why in findings.refused.items():
        notes.append(Note(f"{name} was not built", f"{why.rstrip('.')}."))
        notes += [Note(f"{name} failed", f"{line}.", "failed") for line in failures.get(name, ())]
    notes += (
        _on_floats(findings)
        + _on_mixes(findings)
        + _on_certainty(findings)
        + _on_quantized_rtx(findings)
        + _on_slow_quantized(findings)
    )
    return notes + _on_faster_baselines(findings) + _on_isolated_speed(findings) + _on_noise(findings)


def _on_texts(padding: Padding | None) -> list[Note]:
    if padding is None:
        return []
    cut = f" {padding.cut} were longer than {padding.longest_allowed}, and cut." if padding.cut else ""
    text = (
        f"they have {padding.shortest} to {padding.longest} tokens, half of them up to {padding.median:.0f}. "
        f"In batches of {padding.batch} by length {padding.by_length:.1%} of what is computed is padding; as they come "
        f"it would be {padding.as_they_come:.1%}.{cut}"
    )
    return [Note("Texts", text)]


def _on_boxes(entry: Evidence) -> list[Note]:
    if not entry.engine.boxes.chooses_in_graph:
        return []
    text = "the engine's times include the choice among overlapping boxes, and the baselines' times do not."
    return [Note("Boxes are chosen in the graph", text)]


def noise_by_batch(findings: Findings) -> list[Note]:
    """Return a note with all reasons for each precision and batch size at which a ratio is noisy."""
    return [
        Note(f"{entry.precision} at batch {batch}", f"{_count_and_reasons(noise)}.")
        for entry in findings.precisions
        for batch in findings.batches
        if (noise := noise_at(findings, entry, batch)).noisy
    ]


def _on_the_reference(made_by: str) -> list[Note]:
    meant = f"Where this report says PyTorch, it means {made_by}, which runs that file as written."
    return [] if made_by == PYTORCH else [Note("No PyTorch", f"the model came as an ONNX file. {meant}")]


def _on_preparation(doubt: str | None) -> list[Note]:
    return [Note("Images may be prepared otherwise than the model knows them", f"{doubt}.")] if doubt else []


def _on_certainty(findings: Findings) -> list[Note]:
    """Say which thresholds are kept by these samples, and might not be by others."""
    unsure = [
        f"{entry.precision}: {'; '.join(entry.validation.unsure)}."
        for entry in findings.precisions
        if entry.validation.unsure
    ]
    return [Note("Too few samples to be sure", " ".join(unsure))] if unsure else []


def _on_execution(entry: Evidence, runtime: str) -> list[Note]:
    precision, notes = entry.precision, []
    if not entry.engine.layers_are_known:
        total = len(entry.engine.compute_layers)
        text = (
            f"{runtime} does not tell the types of {total - len(entry.engine.known_layers)} of {total} compute layers."
            if total
            else "the engine was built where it cannot run. "
            f"Build it here to see its layers: `dvc repro --force --single-item build@{precision}`, then `dvc repro`."
        )
        notes.append(Note(f"What {precision} executes is not known", text))
    if not entry.engine.runs_its_precision:
        text = (
            f"{runtime} executed none of it in {precision} here. "
            f"Its accuracy is that of its graph; its speed says nothing about {precision}."
        )
        notes.append(Note(f"{precision} ran as {entry.engine.ran_as}", text))
    return notes


def _on_quantized_rtx(findings: Findings) -> list[Note]:
    """Say that convolutions of a quantized engine of TensorRT for RTX are computed in another precision."""
    if findings.machine.runtime != "tensorrt_rtx":
        return []
    return [
        Note(
            f"{entry.precision} on TensorRT for RTX",
            f"NVIDIA supports it there for {EXECUTED_BY_RTX[entry.precision]}. Where convolutions take the time, "
            f"this speed proves nothing about {entry.precision}.",
        )
        for entry in findings.precisions
        if entry.precision in EXECUTED_BY_RTX
    ]


def _on_slow_quantized(findings: Findings) -> list[Note]:
    """Name the quantized engines that a float engine beats, and the layers that lost."""
    fastest = max(findings.floats, key=lambda entry: findings.quoted(entry).median, default=None)
    return [
        Note(f"{entry.precision} does not pay here", _why_slow(entry, fastest, findings))
        for entry in findings.precisions
        if fastest
        and entry.precision in QUANTIZED
        and entry.engine.runs_its_precision
        and entry.mix is None
        and is_faster(findings, fastest, entry)
    ]


def _on_floats(findings: Findings) -> list[Note]:
    """Say what quantizing did not touch."""
    return [
        Note(f"What {entry.precision} leaves in floats", text)
        for entry in findings.precisions
        if (text := what_is_left(entry))
    ]


def _on_mixes(findings: Findings) -> list[Note]:
    """Say what a mix is, and put what was promised beside what was delivered."""
    notes = []
    for entry in findings.precisions:
        if entry.mix:
            told = "" if entry.delivers else NOT_RECOMMENDED
            text = f"{in_words(entry.mix)}.{told}{_on_a_faster_float(entry.precision, entry.mix, findings)}"
            notes.append(Note(f"What {entry.precision} is", text))
    return notes


def _on_a_faster_float(precision: str, mix: Mix, findings: Findings) -> str:
    """Say which float precision to mix, too, where fp32 alone was. Beside it, only CPUs can have another one."""
    floats = {entry.precision: entry for entry in findings.floats if not entry.mix}
    if findings.machine.device != "cpu" or mix.types != ("int8", "fp32") or "fp32" not in floats:
        return ""
    fastest, fp32 = max(floats.values(), key=lambda entry: findings.quoted(entry).median), floats["fp32"]
    if not is_faster(findings, fastest, fp32):
        return ""
    times = findings.times(fastest, fp32).median
    return f" {fastest.precision} is {times:.2f} times as fast as fp32 here: set `mix.{precision}.floating` to it."


def _why_slow(entry: Evidence, fastest: Evidence, findings: Findings) -> str:
    times = findings.times(fastest, entry).median
    slower = losses(compare(entry.trace.layers, fastest.trace.layers), entry.trace.milliseconds)
    layers = first_few(
        [
            f"{short_name(one.ours)} ({one.ours.milliseconds:.3f} ms, {one.theirs.milliseconds:.3f} there)"
            for one in slower
        ]
    )
    lost = f"These layers lost: {layers}" if slower else "No layer that both have is clearly slower"
    return (
        f"{fastest.precision} is {times:.2f} times as fast at batch {findings.tuned_batch}. {lost}. "
        f"{_what_was_tried(entry, findings)} At another batch size, or on another machine, {entry.precision} may pay."
    )


def _what_was_tried(entry: Evidence, findings: Findings) -> str:
    """Say whether a mix left what lost in floating point, and what would."""
    mixes = [each.mix for each in findings.precisions if each.mix]
    if entry.precision == "int8" and mixes:
        return f"Mixing was tried: {'; '.join(map(in_words, mixes))}."
    by_hand = f"`precisions.{entry.precision}.keep` keeps layers in float."
    return f"No mix was tried: the precision best does that. {by_hand}" if entry.precision == "int8" else by_hand


def _on_faster_baselines(findings: Findings) -> list[Note]:
    """Name the baselines that beat the best engine: compiled or in half precision, PyTorch itself can win."""
    chosen, notes = recommend(findings), []
    if chosen is None:
        return []
    for baseline in findings.baselines:
        ratios = [chosen.ratio(batch, baseline) for batch in findings.batches]
        # At the batch size of the race, the race tells how fast the first one is.
        asked = [ratio for ratio in ratios if (ratio.batch, baseline) != (findings.tuned_batch, findings.baselines[0])]
        slower = [ratio for ratio in asked if AS_FAST * ratio.high < 1]
        raced = findings.quoted(chosen)
        if baseline == findings.baselines[0] and AS_FAST * raced.high < 1:
            slower.append(Ratio(baseline=baseline, batch=findings.tuned_batch, rounds=0, **raced._asdict()))
        if ahead := [f"{1 / ratio.median:.2f} times at batch {ratio.batch}" for ratio in slower]:
            in_other_numbers = set(baseline.split("+")) & set(NUMBER_FORMATS)
            accuracy = " Its accuracy was not measured." if in_other_numbers else ""
            title = f"{baseline_title(baseline)} is faster than {chosen.precision}"
            notes.append(Note(title, f"{', '.join(ahead)}.{accuracy}"))
    return notes


def _on_isolated_speed(findings: Findings) -> list[Note]:
    """Say where the engine is faster in a process of its own, as it is deployed, than beside other contenders."""
    # Replaying a CUDA graph takes longer where other contenders use the same GPU.
    chosen = recommend(findings)
    if chosen is None or not chosen.benchmark.cuda_graph or machine_reasons(findings, chosen):
        return []
    faster = [
        f"{isolated:.3f} ms at batch {batch} ({in_race:.3f} in the race)"
        for batch, isolated in chosen.benchmark.isolated_compute.items()
        if (in_race := chosen.latency(batch).compute) and in_race > AS_FAST * isolated
    ]
    text = f"its compute takes {', '.join(faster)} there. The speed-ups in this report are those of the race."
    return [Note(f"{chosen.precision} is faster {OWN_PROCESS}", text)] if faster else []


def _on_noise(findings: Findings) -> list[Note]:
    noisy = [
        entry.precision
        for entry in findings.precisions
        if any(noise_at(findings, entry, batch).noisy for batch in findings.batches)
    ]
    if not noisy:
        return []
    text = (
        f"those of {', '.join(noisy)}, for the reasons listed below. Which engine is the fastest does not rest on them."
    )
    return [Note(f"Ratios to {baseline_title(findings.baselines[0])} are noisy", text)]


def _count_and_reasons(noise: Noise) -> str:
    count = f"{noise.noisy} of {noise.ratios} ratios: " if noise.ratios > 1 else ""
    return count + "; ".join(noise.why)

"""Notes to read before believing the figures: what failed, lost to PyTorch itself, or was disturbed."""

from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

from enginewright.core.facts import PYTORCH, QUANTIZED, RUNTIMES
from enginewright.core.params.build import NUMBER_FORMATS
from enginewright.core.text import first_few
from enginewright.engine.record import short_name
from enginewright.measure.records import Ratio, baseline_title
from enginewright.precision.records import Mix
from enginewright.report.evidence import Evidence, Findings
from enginewright.report.tables import OWN_PROCESS
from enginewright.report.verdict import AS_FAST, is_faster, recommend, shippable
from enginewright.report.where_time_goes import compare, losses, what_is_left

# TensorRT for RTX executes only this in a quantized precision, says NVIDIA's support matrix.
EXECUTED_BY_RTX = {"int8": "the weights of matrix products alone", "fp8": "matrix products alone"}


class Note(NamedTuple):
    title: str
    text: str
    kind: Literal["failed", "other"] = "other"


def notes_on(findings: Findings) -> list[Note]:
    first, notes = findings.precisions[0], list[Note]()
    if (maker := first.validation.reference) != PYTORCH:
        meant = f"it means {maker}, which runs that file as written."
        notes.append(Note("No PyTorch", f"the model came as an ONNX file. Where this report says PyTorch, {meant}"))
    if doubt := first.validation.doubt:
        notes.append(Note("Samples may be otherwise than the model knows them", f"{doubt}."))
    if first.engine.boxes.chooses_in_graph:
        text = "the engine's times include the choice among overlapping boxes, and the baselines' times do not."
        notes.append(Note("Boxes are chosen in the graph", text))
    for entry in findings.precisions:
        notes += _on_execution(entry, RUNTIMES[findings.machine.runtime].title)
        for line in findings.failures.get(entry.precision, ()):
            blamed = f"; the {entry.validation.loss_comes_from} is to blame" if line in entry.validation.broken else ""
            notes.append(Note(f"{entry.precision} failed", f"{line}{blamed}.", "failed"))
        if entry.cure:
            notes.append(Note(f"{entry.precision} is cured", f"{entry.cure.in_words()}."))
        if tuning := entry.engine.tuning:
            notes.append(Note(f"{entry.precision} is tuned", f"{tuning.in_words()}."))
        if remark := entry.engine.remark:
            notes.append(Note(f"{entry.precision} was built otherwise", f"{remark}."))
    for name, refusal in findings.refused.items():
        notes.append(Note(f"{name} was not built", f"{refusal.why.rstrip('.')}."))
        notes += [Note(f"{name} failed", f"{line}.", "failed") for line in findings.failures.get(name, ())]
    for entry in findings.precisions:
        if left := what_is_left(entry):
            notes.append(Note(f"What {entry.precision} leaves in floats", left))
        if entry.unfused:
            notes.append(Note(f"What {entry.precision} cannot fuse", " ".join(entry.unfused)))
    notes += [_on_mix(entry, entry.mix, findings) for entry in findings.precisions if entry.mix]
    unsure = {entry.precision: "; ".join(entry.validation.unsure) for entry in findings.precisions}
    if texts := [f"{precision}: {text}." for precision, text in unsure.items() if text]:
        notes.append(Note("Too few samples to be sure", " ".join(texts)))
    notes += [*_on_quantized_rtx(findings), *_on_slow_quantized(findings)]
    if chosen := recommend(findings):
        notes += [*_on_faster_baselines(chosen, findings), *_on_isolated_speed(chosen, findings)]
        notes += _on_latency(chosen, findings)
    if noisy := [
        entry.precision
        for entry in findings.precisions
        if any(findings.why_noisy(entry, ratio) for ratio in entry.benchmark.ratios)
    ]:
        those = f"those of {', '.join(noisy)}, for the reasons listed below."
        text = f"{those} Which engine is the fastest does not rest on them."
        notes.append(Note(f"Ratios to {baseline_title(findings.baselines[0])} are noisy", text))
    return notes


def noise_by_batch(findings: Findings) -> list[Note]:
    """Return a note with all reasons for each precision and batch size at which a ratio is noisy."""
    notes = []
    for entry in findings.precisions:
        for batch in findings.batches:
            found = [findings.why_noisy(entry, entry.ratio(batch, name)) for name in findings.baselines]
            if noisy := sum(map(bool, found)):
                count = f"{noisy} of {len(found)} ratios: " if len(found) > 1 else ""
                why = "; ".join(dict.fromkeys(chain(*found)))  # each reason once, however many ratios share it
                notes.append(Note(f"{entry.precision} at batch {batch}", f"{count}{why}."))
    return notes


def _on_execution(entry: Evidence, runtime: str) -> Iterator[Note]:
    precision, engine = entry.precision, entry.engine
    if not engine.layers_are_known:
        total = len(engine.compute_layers)
        text = (
            f"{runtime} does not tell the types of {total - len(engine.known_layers)} of {total} compute layers."
            if total
            else "the engine was built where it cannot run. "
            f"Build it here to see its layers: `dvc repro --force --single-item build@{precision}`, then `dvc repro`."
        )
        yield Note(f"What {precision} executes is not known", text)
    if not engine.runs_its_precision:
        text = (
            f"{runtime} executed none of it in {precision} here. "
            f"Its accuracy is that of its graph; its speed says nothing about {precision}."
        )
        yield Note(f"{precision} ran as {engine.ran_as}", text)


def _on_mix(entry: Evidence, mix: Mix, findings: Findings) -> Note:
    """Say what a mix is, and put what was promised beside what was delivered. Where fp32 alone was mixed in, say which
    float precision to mix, too: beside fp32, only CPUs can have another one."""
    text = f"{mix.in_words()}."
    if not entry.delivers:
        text += " So it is not recommended, however it was timed here."
    floats = {each.precision: each for each in findings.floats if not each.mix}
    if findings.machine.device == "cpu" and mix.types == ("int8", "fp32") and "fp32" in floats:
        fastest = findings.fastest([*floats.values()])
        if is_faster(findings, fastest, floats["fp32"]):
            times = findings.times(fastest, floats["fp32"]).median
            text += f" {fastest.precision} is {times:.2f} times as fast as fp32 here: "
            text += f"set `mix.{entry.precision}.floating` to it."
    return Note(f"What {entry.precision} is", text)


def _on_quantized_rtx(findings: Findings) -> Iterator[Note]:
    """Say that convolutions of a quantized engine of TensorRT for RTX are computed in another precision."""
    for entry in findings.precisions:
        if findings.machine.runtime == "tensorrt_rtx" and entry.precision in EXECUTED_BY_RTX:
            yield Note(
                f"{entry.precision} on TensorRT for RTX",
                f"NVIDIA supports it there for {EXECUTED_BY_RTX[entry.precision]}. Where convolutions take the time, "
                f"this speed proves nothing about {entry.precision}.",
            )


def _on_slow_quantized(findings: Findings) -> Iterator[Note]:
    """Name the quantized engines that a float engine beats, and the layers that lost."""
    if not (floats := findings.floats):
        return
    fastest = findings.fastest(floats)
    mixes = [each.mix.in_words() for each in findings.precisions if each.mix]
    for entry in findings.precisions:
        name = entry.precision
        quantized = name in QUANTIZED and entry.engine.runs_its_precision and entry.mix is None
        if not quantized or not is_faster(findings, fastest, entry):
            continue
        slower = losses(compare(entry.trace.layers, fastest.trace.layers), entry.trace.milliseconds)
        layers = [
            f"{short_name(one.ours)} ({one.ours.milliseconds:.3f} ms, {one.theirs.milliseconds:.3f} there)"
            for one in slower
        ]
        lost = f"These layers lost: {first_few(layers)}" if slower else "No layer that both have is clearly slower"
        tried = f"`precisions.{name}.keep` keeps layers in float."
        if name == "int8" and mixes:
            tried = f"Mixing was tried: {'; '.join(mixes)}."
        elif name == "int8":
            tried = f"No mix was tried: the precision best does that. {tried}"
        yield Note(
            f"{name} does not pay here",
            f"{fastest.precision} is {findings.times(fastest, entry).median:.2f} times as fast at batch "
            f"{findings.race.batch}. {lost}. {tried} At another batch size, or on another machine, {name} may pay.",
        )


def _on_faster_baselines(chosen: Evidence, findings: Findings) -> Iterator[Note]:
    """Name the baselines that beat the best engine: compiled or in half precision, PyTorch itself can win."""
    raced = (findings.race.batch, findings.baselines[0])  # of these, the race tells how fast the engine is
    times = findings.quoted(chosen)
    for baseline in findings.baselines:
        ratios = [chosen.ratio(batch, baseline) for batch in findings.batches if (batch, baseline) != raced]
        if baseline == findings.baselines[0]:
            ratios.append(Ratio(baseline=baseline, batch=findings.race.batch, rounds=0, **times._asdict()))
        slower = [ratio for ratio in ratios if AS_FAST * ratio.high < 1]
        if ahead := [f"{1 / ratio.median:.2f} times at batch {ratio.batch}" for ratio in slower]:
            in_other_numbers = set(baseline.split("+")) & set(NUMBER_FORMATS)
            accuracy = " Its accuracy was not measured." if in_other_numbers else ""
            title = f"{baseline_title(baseline)} is faster than {chosen.precision}"
            yield Note(title, f"{', '.join(ahead)}.{accuracy}")


def _on_latency(chosen: Evidence, findings: Findings) -> Iterator[Note]:
    """Name the precision that surely serves more than the race's choice within benchmark.within_ms."""
    found = [(within, entry.precision) for entry in shippable(findings) if (within := entry.benchmark.within)]
    ours, (best, name) = chosen.benchmark.within, max(found, key=lambda each: each[0].low, default=(None, ""))
    if ours and best and best.low > ours.high:
        text = f"{best.promised:,.0f} {findings.kind}/s at random times, and {chosen.precision} {ours.promised:,.0f}"
        yield Note(f"{name} serves more within {ours.milliseconds:g} ms", f"{text}, as simulated.")


def _on_isolated_speed(chosen: Evidence, findings: Findings) -> Iterator[Note]:
    """Say where the engine is faster in a process of its own, as it is deployed, than beside other contenders:
    replaying a CUDA graph takes longer where others use the same GPU."""
    if not chosen.benchmark.cuda_graph or findings.machine_reasons(chosen):
        return
    if faster := [
        f"{isolated:.3f} ms at batch {batch} ({in_race:.3f} in the race)"
        for batch, isolated in chosen.benchmark.isolated_compute.items()
        if (in_race := chosen.latency(batch).compute) and in_race > AS_FAST * isolated
    ]:
        text = f"its compute takes {', '.join(faster)} there. The speed-ups in this report are those of the race."
        yield Note(f"{chosen.precision} is faster {OWN_PROCESS}", text)

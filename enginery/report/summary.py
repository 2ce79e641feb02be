"""The report as Markdown."""

from collections.abc import Mapping, Sequence

import pandas as pd

from enginery.core.runtimes import RUNTIMES
from enginery.report import tables
from enginery.report.evidence import Evidence, Findings
from enginery.report.notes import Note, noise_by_batch, notes_on
from enginery.report.verdict import recommend, sentence, stands, why
from enginery.report.where_time_goes import layer_sections
from enginery.report.wording import device
from enginery.speed.records import ENGINE

NOISE = "What is noisy and why"


def write_summary(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> str:
    machine, first = findings.machine, findings.precisions[0]
    on_gpu, noise = machine.device == "cuda", noise_by_batch(findings)
    parts = [
        "# Which precision to ship",
        _verdict(findings),
        f"Measured on {device(machine)}, {RUNTIMES[machine.runtime].title} {machine.runtime_version}, "
        f"{first.benchmark.threads} threads, {first.validation.samples} validation images.",
        *_listed(notes_on(findings, failures)),
        *([f"All [reasons](#{_anchor(NOISE)}) for noise stand at the end."] if noise else []),
        "![Accuracy and speed](figures/tradeoff.png)",
        "## Accuracy",
        "Each engine against PyTorch on the full validation set.",
        _markdown(tables.accuracy_table(findings)),
        "Where the error arises, as relative error: the typed graph run as written against PyTorch, then the engine "
        "against that graph.",
        _markdown(tables.blame_table(findings)),
        f"{tables.explain_spots(findings)}.",
        _markdown(tables.spot_table(findings)),
        "## Executed precision",
        f"What the compiler made of the layers that carry the arithmetic.{tables.explain_tf32(findings)}",
        _markdown(tables.executed_table(findings)),
        "## Latency",
        f"Milliseconds per batch: p50 / p90 / p99, the last of {tables.RUNS_FOR_P99} calls or more"
        + (", copies to the GPU and back included." if on_gpu else "."),
        _markdown(tables.latency_table(findings)),
        *_cost_section(findings),
        *(_gpu_sections(findings) if on_gpu else []),
        "![Latency](figures/latency.png)",
        f"Times as fast as the baseline, which ran beside each engine anew: median over rounds in which both took a "
        f"turn, and its {first.benchmark.confidence:.0%} interval within this run. Another run can differ by more. "
        f"An asterisk marks what is noisy{_reasons_below(noise)}. {_set_aside(findings)}".rstrip(),
        _markdown(tables.ratio_table(findings)),
        "## Throughput",
        "Images per second. One at a time: the next batch is asked for when the last has been answered, as in the race "
        "that the latencies above are of. Several at once, in a pass of its own: so many requests are in flight, each "
        "with its own buffers; in parentheses, how many times the images of one at a time, which took turns with it, "
        "and the 99th percentile of milliseconds that a request waits, if 100 or more were answered."
        + (f" {tables.STRAY}" if findings.flights_stray else ""),
        _markdown(tables.throughput_table(findings)),
        "![Throughput](figures/throughput.png)",
        "## Where the time goes",
        *(part if isinstance(part, str) else _markdown(part) for part in layer_sections(findings)),
        "## Memory and size",
        "Peak memory is that of a process which only loads the engine and runs the largest batch."
        + (" The driver does not show what it holds on the GPU." if on_gpu and not _shows_gpu_memory(first) else ""),
        _markdown(tables.memory_table(findings)),
        *([f"## {NOISE}", *_listed(noise)] if noise else []),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(findings: Findings) -> str:
    chosen, said = recommend(findings), sentence(findings)
    return f"{said} {why(findings, chosen)}" if chosen and stands(findings, chosen) else said


def _set_aside(findings: Findings) -> str:
    paces = [entry.benchmark.pace for entry in findings.precisions]
    rounds, aside = sum(pace.rounds for pace in paces), sum(pace.set_aside for pace in paces)
    return f"{aside} of {rounds} rounds were set aside: the machine ran at another pace meanwhile." if aside else ""


def _cost_section(findings: Findings) -> list[str]:
    if not len(costs := tables.cost_table(findings)):
        return []
    what = "What a batch costs, as p50 = fixed + images x each, and how far the worst batch size is off that line."
    return [what, _markdown(costs)]


def _gpu_sections(findings: Findings) -> list[str]:
    replayed = [entry.precision for entry in findings.precisions if entry.benchmark.cuda_graph]
    how = f"of {', '.join(replayed)} were replayed as one CUDA graph" if replayed else "were launched one by one"
    return [
        f"The median of the compute alone, by the GPU's clock; the kernels {how}. Between kernels that are launched "
        f"one by one the GPU may wait for the host, which counts.{tables.explain_by_itself(findings)}",
        _markdown(tables.compute_table(findings)),
        *(["The GPU meanwhile.", _markdown(watched)] if len(watched := tables.gpu_table(findings)) else []),
    ]


def _shows_gpu_memory(entry: Evidence) -> bool:
    return entry.benchmark.peak_memory[ENGINE].device is not None


def _listed(notes: Sequence[Note]) -> list[str]:
    return ["\n".join(f"- **{note.title}:** {note.text}" for note in notes)] if notes else []


def _reasons_below(noise: Sequence[Note]) -> str:
    return f", for the [reasons at the end](#{_anchor(NOISE)})" if noise else ""


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _markdown(table: pd.DataFrame) -> str:
    return str(table.to_markdown(disable_numparse=True))

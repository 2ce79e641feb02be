"""The report as Markdown."""

from collections.abc import Mapping, Sequence

import pandas as pd

from enginery.core.runtimes import RUNTIMES
from enginery.report import tables
from enginery.report.evidence import Findings
from enginery.report.notes import Note, noise_by_batch, notes_on
from enginery.report.verdict import is_certain, recommend, sentence, why
from enginery.report.where_time_goes import layer_sections
from enginery.report.wording import device
from enginery.speed.records import ENGINE

NOISE = "What is noisy and why"
AT_NOISE = f"#{NOISE.lower().replace(' ', '-')}"


def write_summary(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> str:
    machine, first = findings.machine, findings.precisions[0]
    on_gpu, noise = machine.device == "cuda", noise_by_batch(findings)
    chosen, verdict = recommend(findings), sentence(findings)
    if chosen and is_certain(findings, chosen):
        verdict = f"{verdict} {why(findings, chosen)}"
    below = f" (see the [reasons at the end]({AT_NOISE}))" if noise else ""
    parts = [
        "# Which precision to ship",
        verdict,
        f"Measured on {device(machine)}, {RUNTIMES[machine.runtime].title} {machine.runtime_version}, "
        f"{first.benchmark.threads} threads, {first.validation.samples} validation images.",
        *_listed(notes_on(findings, failures)),
        *([f"All [reasons]({AT_NOISE}) for noise are listed at the end."] if noise else []),
        "![Accuracy and speed](figures/tradeoff.png)",
        "## Accuracy",
        "Each engine against PyTorch on the full validation set.",
        _markdown(tables.accuracy_table(findings)),
        "Where the relative error arises: first the typed graph, run as written, against PyTorch; then the engine "
        "against that graph.",
        _markdown(tables.blame_table(findings)),
        f"{tables.explain_spots(findings)}.",
        _markdown(tables.spot_table(findings)),
        "## Executed precision",
        f"The types in which the layers that carry the arithmetic are executed.{tables.explain_tf32(findings)}",
        _markdown(tables.executed_table(findings)),
        "## Latency",
        f"Milliseconds per batch: p50 / p90 / p99, the last from {tables.RUNS_FOR_P99} calls or more"
        + (", copies to the GPU and back included." if on_gpu else "."),
        _markdown(tables.latency_table(findings)),
        *_cost_section(findings),
        *(_gpu_sections(findings) if on_gpu else []),
        "![Latency](figures/latency.png)",
        "How many times as fast as the baseline an engine is. The baseline was timed anew beside each engine: the "
        "median is over rounds in which both took a turn, and its interval "
        f"({first.benchmark.confidence:.0%}) is that within this run. Another run can differ by more. "
        f"An asterisk marks a noisy ratio{below}. {_set_aside(findings)}".rstrip(),
        _markdown(tables.ratio_table(findings)),
        "## Throughput",
        "Images per second. One at a time: the next batch is requested when the last one has been answered, as in the "
        "race, which measured the latencies above. Several at once, measured in a separate pass: so many requests are "
        "in flight, each with its own buffers. In parentheses: how many times as many images as one at a time, which "
        "took turns with it, and the 99th percentile of the milliseconds that a request waits, if 100 or more were "
        "answered." + (f" {tables.CONTRADICTION}" if findings.throughput_contradicts_race else ""),
        _markdown(tables.throughput_table(findings)),
        "![Throughput](figures/throughput.png)",
        "## Where the time goes",
        *(part if isinstance(part, str) else _markdown(part) for part in layer_sections(findings)),
        "## Memory and size",
        "Peak memory is that of a process that only loads the engine and runs the largest batch."
        + (
            " The driver does not show how much of the GPU's memory it takes."
            if on_gpu and first.benchmark.peak_memory[ENGINE].device is None
            else ""
        ),
        _markdown(tables.memory_table(findings)),
        *([f"## {NOISE}", *_listed(noise)] if noise else []),
    ]
    return "\n\n".join(parts) + "\n"


def _set_aside(findings: Findings) -> str:
    paces = [entry.benchmark.pace for entry in findings.precisions]
    rounds, aside = sum(pace.rounds for pace in paces), sum(pace.set_aside for pace in paces)
    return f"{aside} of {rounds} rounds were set aside, because the machine ran at another pace." if aside else ""


def _cost_section(findings: Findings) -> list[str]:
    about = "What a batch costs: p50 = fixed + images x per image, and how far the worst batch size is off that line."
    return [about, _markdown(costs)] if len(costs := tables.cost_table(findings)) else []


def _gpu_sections(findings: Findings) -> list[str]:
    replayed = [entry.precision for entry in findings.precisions if entry.benchmark.cuda_graph]
    how = f"of {', '.join(replayed)} were replayed as one CUDA graph" if replayed else "were launched one by one"
    watched = tables.gpu_table(findings)
    return [
        f"The median time of the compute without copies, by the GPU's clock; the kernels {how}. Between kernels that "
        f"are launched one by one the GPU may wait for the host, which counts.{tables.explain_own_process(findings)}",
        _markdown(tables.compute_table(findings)),
        *(["The state of the GPU during the race.", _markdown(watched)] if len(watched) else []),
    ]


def _listed(notes: Sequence[Note]) -> list[str]:
    return ["\n".join(f"- **{note.title}:** {note.text}" for note in notes)] if notes else []


def _markdown(table: pd.DataFrame) -> str:
    return str(table.to_markdown(disable_numparse=True))

"""The report as Markdown, and as numbers for `dvc metrics diff`."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from enginery.core.records import ENGINE, Machine
from enginery.reporting import tables
from enginery.reporting.evidence import Evidence, Findings
from enginery.reporting.noise import noisy_races, reasons, slowed
from enginery.reporting.verdict import recommend, sentence
from enginery.reporting.where_time_goes import layer_sections


def write_summary(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> str:
    machine, first = findings.machine, findings.precisions[0]
    on_gpu, labeled = machine.device == "cuda", first.validation.engine_accuracy is not None
    parts = [
        "# Which precision to ship",
        sentence(findings),
        f"Measured on {_device(machine)}, {machine.runtime} {machine.runtime_version}, "
        f"{first.benchmark.threads} threads, {first.validation.samples} validation images.",
        *_warnings(findings, failures),
        "![Accuracy and speed](figures/tradeoff.png)",
        "## Accuracy",
        "Each engine against PyTorch on the full validation set."
        + ("" if labeled else " Accuracy is not measured, and accuracy_drop not judged: the images have no labels."),
        _markdown(tables.accuracy_table(findings)),
        "Where the error arises, as relative error: the typed graph run as written against PyTorch, then the engine "
        "against that graph.",
        _markdown(tables.blame_table(findings)),
        f"At single batch sizes, over {first.validation.spots[0].samples} images or one batch: "
        f"{'accuracy, and ' if labeled else ''}the relative error to the same engine's logits on the full set.",
        _markdown(tables.spot_table(findings)),
        "## Executed precision",
        "What the compiler made of the layers that carry the arithmetic.",
        _markdown(tables.executed_table(findings)),
        "## Latency",
        "Milliseconds per batch: p50 / p90 / p99" + (", copies to the GPU and back included." if on_gpu else "."),
        _markdown(tables.latency_table(findings)),
        *_cost_section(findings),
        *(_gpu_sections(findings) if on_gpu else []),
        "![Latency](figures/latency.png)",
        f"Times as fast as the baseline, which ran beside each engine anew: median over rounds in which both took a "
        f"turn, and its {first.benchmark.confidence:.0%} interval within this run. Another run can differ by more. "
        f"An asterisk marks what is noisy, for the reasons named above. {_set_aside(findings)}",
        _markdown(tables.ratio_table(findings)),
        "## Throughput",
        "Images per second. One at a time: the next batch is asked for when the last has been answered, which is what "
        "the latencies above are of. Several at once: so many requests are in flight, each with its own buffers, and "
        "each waits longer, as its 99th percentile in milliseconds says.",
        _markdown(tables.throughput_table(findings)),
        "![Throughput](figures/throughput.png)",
        "## Where the time goes",
        *(part if isinstance(part, str) else _markdown(part) for part in layer_sections(findings)),
        "## Memory and size",
        "Peak memory is that of a process which only loads the engine and runs the largest batch."
        + (" The driver does not show what it holds on the GPU." if on_gpu and not _shows_gpu_memory(first) else ""),
        _markdown(tables.memory_table(findings)),
    ]
    return "\n\n".join(parts) + "\n"


def _device(machine: Machine) -> str:
    if machine.device == "cpu":
        return f"{machine.device_name} ({machine.cores} cores)"
    return (
        f"{machine.device_name} (compute capability {machine.capability}, driver {machine.driver}, CUDA {machine.cuda})"
    )


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
        f"The median of the compute alone, by the GPU's clock; the kernels {how}.",
        _markdown(tables.compute_table(findings)),
        *(["The GPU meanwhile.", _markdown(watched)] if len(watched := tables.gpu_table(findings)) else []),
    ]


def _shows_gpu_memory(entry: Evidence) -> bool:
    return entry.benchmark.peak_memory[ENGINE].device is not None


def metrics(findings: Findings) -> dict[str, Any]:
    chosen = recommend(findings)
    measured = _known(accuracy=findings.precisions[0].validation.reference_accuracy)
    return {
        "recommended": chosen.precision if chosen else "none",
        **({"pytorch": measured} if measured else {}),
        **{entry.precision: _precision_metrics(entry, findings) for entry in findings.precisions},
    }


def _precision_metrics(entry: Evidence, findings: Findings) -> dict[str, Any]:
    validation, errors = entry.validation, entry.validation.engine_against_pytorch
    peak = entry.benchmark.peak_memory[ENGINE]
    return {
        "passed": validation.passed,
        **_known(accuracy=validation.engine_accuracy, accuracy_drop=validation.accuracy_drop),
        **_known(top1_agreement=errors.top1_agreement),
        "cosine": round(errors.cosine, 6),
        "relative_error": float(f"{errors.relative:.3g}"),
        "executed_as_asked": round(entry.engine.share_as_asked, 3),
        "engine_mb": round(entry.engine.bytes / 1e6, 2),
        "peak_mb": round(peak.host),
        **({"peak_gpu_mb": round(peak.device)} if peak.device else {}),
        **{f"batch{batch}": _batch_metrics(entry, batch, findings.baselines[0]) for batch in findings.batches},
    }


def _known(**shares: float | None) -> dict[str, float]:
    """What was not measured is left out: a zero would read as a finding."""
    return {name: round(share, 4) for name, share in shares.items() if share is not None}


def _batch_metrics(entry: Evidence, batch: int, baseline: str) -> dict[str, float]:
    latency = entry.latency(batch)
    return {
        "p50_ms": round(latency.p50, 3),
        "p99_ms": round(latency.p99, 3),
        "images_per_s": round(latency.images_per_second, 1),
        "speedup": round(entry.ratio(batch, baseline).median, 3),
        "noisy": bool(reasons(entry, entry.ratio(batch, baseline))),
    }


def _warnings(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> list[str]:
    lines = []
    for entry in findings.precisions:
        if not entry.is_known:
            lines.append(
                f"- **What {entry.precision} executes is not known:** the engine was built where it cannot run. "
                f"Build it here to see its layers: `dvc repro --force build@{entry.precision}`."
            )
        if not entry.is_what_it_says:
            executed = next(iter(entry.engine.executed), "nothing")
            lines.append(
                f"- **{entry.precision} ran as {executed}:** {findings.machine.runtime} executed none of it in "
                f"{entry.precision} here. Its accuracy is that of its graph, its speed is {executed}'s."
            )
        blamed = f"the {entry.validation.loss_comes_from} is to blame"
        lines += [
            f"- **{entry.precision} failed:** {line}" + (f"; {blamed}." if line in entry.validation.broken else ".")
            for line in failures.get(entry.precision, ())
        ]
    lines += [
        f"- **Noisy, {entry.precision} at batch {batch}:** {'; '.join(why)}."
        for entry, batch, why in noisy_races(findings)
    ]
    lines += [
        f"- **A slower machine, {precision}:** by its pace, {times:.2f} times as slow as beside another precision. "
        f"Milliseconds and ratios are of that machine; `dvc repro --force --single-item benchmark@{precision}` "
        "measures again."
        for precision, times in slowed(findings).items()
    ]
    return ["\n".join(lines)] if lines else []


def _markdown(table: pd.DataFrame) -> str:
    return str(table.to_markdown(disable_numparse=True))

"""The findings and what was tried on the way as tables, for the page and the summary. The first column is the index."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from enginewright.core.params.all import flat
from enginewright.core.params.build import EAGER
from enginewright.core.text import counted, file_size, first_few
from enginewright.engine.machine import Machine
from enginewright.measure.records import ENGINE, LAUNCHED, Factor, PeakMemory, Ratio, Validation, baseline_title
from enginewright.precision.records import Mix, Rescue, errors_in_words
from enginewright.report.evidence import MOST_DEVIATION, Evidence, Findings, known_p99
from enginewright.report.verdict import fastest_of, milliseconds, verdict_on

OWN_PROCESS = "in a process of its own"
NOT_BUILT = "not built"
CONTRADICTION = (
    f"An asterisk: in that pass, one at a time was more than {MOST_DEVIATION - 1:.0%} faster or slower than in the "
    "race. Trust how many times as many there were, not how many per second."
)


def facts(found: Mapping[str, Any]) -> pd.DataFrame:
    """List names and values. Nested sections become dotted names."""

    def written(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        return "-" if listed in ("", None, {}) else str(listed)

    return _frame({place: {"value": written(value)} for place, value in flat(found)}, index="name")


def _frame(rows: Mapping[str, Mapping[str, object]], index: str = "precision") -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(index).fillna("-")


def with_interval(times: Factor | Ratio) -> str:
    """Write a factor, or a dash for one of exactly 1 to 1, as of an engine beside itself."""
    return "-" if times.low == times.high == 1 else f"{times.median:.2f} ({times.low:.2f} to {times.high:.2f})"


def engine_metric(found: Validation) -> str:
    return "-" if found.main is None else found.main.written(found.main.engine)


def device(machine: Machine) -> str:
    facts = f"compute capability {machine.capability}, driver {machine.driver}, CUDA {machine.cuda}"
    if machine.device == "cpu":
        facts = counted(machine.cores, "core")
    return f"{machine.device_name} ({', '.join(filter(None, (facts, machine.power)))})"


def overview(findings: Findings) -> pd.DataFrame:
    rows = {}
    for entry in findings.precisions:
        validation, race = entry.validation, findings.race
        rows[entry.precision] = {
            "verdict": verdict_on(findings, entry),
            f"times {baseline_title(findings.baselines[0])}": with_interval(findings.quoted(entry)),
            f"ms per batch of\N{NO-BREAK SPACE}{race.batch}": f"{milliseconds(findings, entry.precision):.2f}",
            validation.metric: engine_metric(validation),
            "same answer": f"{validation.agreement.share:.2%}" if validation.agreement else "-",
            "relative error": f"{validation.engine_against_pytorch.relative:.1e}",
            "engine": file_size(entry.engine.bytes),
            "peak memory, MB": f"{entry.benchmark.peak_memory[ENGINE].host:.0f}",
        }
    return _frame(rows | {name: {"verdict": NOT_BUILT} for name in findings.refused})


def accuracy_table(findings: Findings) -> pd.DataFrame:
    rows = {}
    for entry in findings.precisions:
        validation, errors = entry.validation, entry.validation.engine_against_pytorch
        results = {validation.metric: "-", "drop": "-"}  # if it could not be measured
        for number, one in enumerate(validation.results):
            results[one.name] = one.written(one.engine)
            results[f"{one.name} drop" if number else "drop"] = one.drop_with_interval
        agreed = validation.agreement
        rows[entry.precision] = {
            "thresholds": "passed" if validation.passed else "FAILED",
            **results,
            **({agreed.name: agreed.share_with_interval} if agreed else {}),
            "cosine": f"{errors.cosine:.6f}",
            "relative error": f"{errors.relative:.1e}",
            "max abs error": f"{errors.max_abs:.1e}",
            "mean abs error": f"{errors.mean_abs:.1e}",
            "NaN or Inf": f"{errors.nonfinite}",
        }
    return _frame(rows)


def blame_table(findings: Findings) -> pd.DataFrame:
    """Tell the errors of the graph's types from those of the compiler."""
    rows = {}
    for entry in findings.precisions:
        validation, main = entry.validation, entry.validation.main
        rows[entry.precision] = {
            "from the precision: graph to PyTorch": f"{validation.graph_against_pytorch.relative:.1e}",
            "from the compiler: engine to graph": f"{validation.engine_against_graph.relative:.1e}",
            "in total: engine to PyTorch": f"{validation.engine_against_pytorch.relative:.1e}",
            f"{validation.metric} of the graph": "-" if main is None else main.written(main.graph),
            f"{validation.metric} of the engine": engine_metric(validation),
            "to blame": validation.loss_comes_from if validation.broken else "nothing broke",
        }
    return _frame(rows)


def executed_table(findings: Findings) -> pd.DataFrame:
    rows = {}
    for entry in findings.precisions:
        engine, others = entry.engine, "-"
        if engine.layers_are_known:  # a fused layer has the last of its names
            others = first_few([layer.name.split(",")[-1] for layer in engine.not_as_asked]) or "none"
            if len(engine.not_as_asked) == len(engine.compute_layers):
                others = "all"
        counts = ", ".join(f"{count} {name}" for name, count in engine.executed.items())
        rows[entry.precision] = {
            "compute layers executed as": counts or "not known",
            "as asked": f"{engine.share_as_asked:.0%}" if engine.layers_are_known else "-",
            "not as asked": others,
        }
    return _frame(rows)


def explain_tf32(findings: Findings) -> str:
    if not any("tf32" in entry.engine.executed for entry in findings.precisions):
        return ""
    return " tf32 is how a GPU multiplies float32 if build.tf32 allows it: with 11 bits of mantissa instead of 24."


def race_table(findings: Findings) -> pd.DataFrame:
    """Give the race of all engines, which decides, with each beside the baseline and the fastest beside each."""
    race, fastest = findings.race, fastest_of(findings).precision
    rows = {
        name: {
            f"ms per batch of {race.batch}": f"{milliseconds(findings, name):.3f}",
            f"times {baseline_title(race.baseline)}": with_interval(race.times(name, race.baseline)),
            f"{fastest} is times as fast": with_interval(race.times(fastest, name)),
        }
        for name in (*(entry.precision for entry in findings.precisions), race.baseline)
    }
    return _frame(rows, index="in turns")


def latencies(findings: Findings) -> pd.DataFrame:
    """List each contender at each batch size. Ratios are to the baseline that ran beside the engine."""
    rows = []
    for title, entry, contender in _contenders(findings):
        for batch in findings.batches:
            latency, p99 = entry.latency(batch, contender), known_p99(entry.latency(batch, contender))
            row = {
                "contender": title,
                "batch": str(batch),
                "p50, ms": f"{latency.p50:.2f}",
                "p90, ms": f"{latency.p90:.2f}",
                "p99, ms": "-" if p99 is None else f"{p99:.2f}",
                f"{findings.kind}/s": f"{latency.images_per_second:,.0f}",
            }
            for name in findings.baselines:
                ratio = entry.ratio(batch, name)
                times = with_interval(ratio) + (" *" if findings.why_noisy(entry, ratio) else "")
                row[f"times {baseline_title(name)} (interval)"] = times if contender == ENGINE else "-"
            rows.append(row)
    return pd.DataFrame(rows).set_index("contender")


def _contenders(findings: Findings) -> list[tuple[str, Evidence, str]]:
    """Return the baselines, as they ran beside the first precision, and then each engine."""
    first = findings.precisions[0]
    found = [(f"{baseline_title(name)}, beside {first.precision}", first, name) for name in findings.baselines]
    for entry in findings.precisions:
        found.append((entry.precision, entry, ENGINE))
        if entry.benchmark.cuda_graph:
            found.append((f"{entry.precision}, launched one by one", entry, LAUNCHED))
    return found


def size_table(findings: Findings) -> pd.DataFrame:
    """Give the median latencies at each size of an axis of the user's, and how many times as fast as the baseline."""
    rows: dict[str, dict[str, str]] = {}
    for title, entry, contender in _contenders(findings):
        for each in entry.benchmark.sizes:
            found = next(one for one in each.latencies if one.contender == contender)
            times = f" ({each.ratios[0].median:.2f})" if contender == ENGINE and each.ratios else ""
            rows.setdefault(title, {})[f"{each.axis} {each.size}"] = f"{found.p50:.2f}{times}"
    return _frame(rows)


def compute_table(findings: Findings) -> pd.DataFrame:
    """Give the median without the copies to the GPU and back, for each engine also in a process of its own. Empty
    where nothing is copied."""
    found = {
        title: {batch: taken for batch in findings.batches if (taken := entry.latency(batch, contender).compute)}
        for title, entry, contender in _contenders(findings)
    }
    found |= {f"{entry.precision}, {OWN_PROCESS}": entry.benchmark.isolated_compute for entry in findings.precisions}
    timed = {title: times for title, times in found.items() if times}
    return _frame({name: {f"batch {size}": f"{ms:.3f}" for size, ms in times.items()} for name, times in timed.items()})


def explain_own_process(findings: Findings) -> str:
    if not any(entry.benchmark.isolated_compute for entry in findings.precisions):
        return ""
    return f" Rows that say “{OWN_PROCESS}” were timed without other contenders, as an engine is deployed."


def gpu_table(findings: Findings) -> pd.DataFrame:
    """Give the state of the GPU while each engine was timed: at other clocks, ratios are other ones."""
    rows = {
        entry.precision: {
            "clock, MHz: low / median / high": f"{gpu.clock_low} / {gpu.clock_median} / {gpu.clock_high}",
            "memory clock, MHz": f"{gpu.memory_clock}",
            "power, W: median / high": f"{gpu.power_median:.0f} / {gpu.power_high:.0f}",
            "hottest, °C": f"{gpu.temperature_high}",
            "throttled": ", ".join(f"{why} {share:.0%} of the time" for why, share in gpu.throttled.items()) or "never",
        }
        for entry in findings.precisions
        if (gpu := entry.benchmark.gpu)
    }
    return _frame(rows)


def throughputs(findings: Findings) -> pd.DataFrame:
    rows = []
    for entry in findings.precisions:
        for one in entry.benchmark.throughput:
            doubt = " *" if one.requests > 1 and entry.contradicts_race(one) else ""
            row = {
                "precision": entry.precision,
                "batch": str(one.batch),
                "requests in flight": str(one.requests),
                f"{findings.kind}/s": f"{entry.images_per_second(one):,.0f}{doubt}",
                "times one at a time": f"{entry.gain(one):.2f}",
                "p50, ms per request": f"{one.p50:.2f}",
                "p99, ms per request": "-" if (p99 := known_p99(one)) is None else f"{p99:.2f}",
            }
            rows.append(row)
    return pd.DataFrame(rows).set_index("precision")


def within_table(findings: Findings) -> pd.DataFrame:
    """Give what serves the most within the latency of benchmark.within_ms."""
    found = {entry.precision: entry.benchmark.within for entry in findings.precisions}
    return _frame({name: within.in_words for name, within in found.items() if within})


def memory_table(findings: Findings) -> pd.DataFrame:
    def written(peak: PeakMemory) -> str:
        return f"{peak.host:.0f}" + (f" + {peak.device:.0f} on the GPU" if peak.device else "")

    rows = {
        entry.precision: {
            "ONNX": file_size(entry.engine.onnx_bytes),
            "engine": file_size(entry.engine.bytes) + (", and the ONNX file" if entry.engine.weights else ""),
            "peak memory, MB": written(entry.benchmark.peak_memory[ENGINE]),
            **({"PyTorch eager, MB": written(peak)} if (peak := entry.benchmark.peak_memory.get(EAGER)) else {}),
            "build, s": f"{entry.engine.build_seconds:.1f}",
        }
        for entry in findings.precisions
    }
    return _frame(rows)


def rescue_table(found: Rescue) -> pd.DataFrame:
    """List what was tried before a search, and what each brought."""
    first = "-" if found.tried else "no rescue is asked for"
    if found.tried and found.enough is not None and found.error < found.enough:
        first = f"below {found.enough:.0%}, so that only what is quick was tried"
    rows = {"as calibrated": (errors_in_words(found.error, found.at_once), first)}
    for each in found.tried:
        error, brought = "-", "does not apply to this graph"
        if each.error is not None:
            error = errors_in_words(each.error, each.at_once)
            change = each.error / found.error - 1 if found.error else 0.0
            layers = f": {first_few(found.spared)} in floating point" if found.spared else ""
            brought = f"{change:+.0%}, {f'kept{layers}' if each.names == found.kept else 'not kept'}"
        rows[" and ".join(each.names)] = error, brought
    return pd.DataFrame.from_dict(rows, orient="index", columns=["error", "brought"]).rename_axis("rescue")


def candidates_table(mix: Mix) -> pd.DataFrame:
    """List what a mix was chosen from, with what each promised and delivered."""
    rows = []
    for number, each in enumerate(mix.candidates):
        delivered = mix.delivered if number == mix.mixed else None
        row = {
            "candidate": mix.types[number] if number < len(mix.types) else f"mix {number - len(mix.types) + 1}",
            **{f"parts in {name}": f"{each.assignment.count(name)} of {len(mix.blocks)}" for name in mix.types[1:]},
            "promised by layer times": each.promised.in_figures(),
            "race of all": "-" if each.raced is None else f"{each.raced:.3f}",
            f"delivered, over {mix.rival}": delivered.in_figures() if delivered else "-",
            "of what thresholds allow": f"{each.spent:.0%}",
        }
        rows.append(row)
    return pd.DataFrame(rows).set_index("candidate")


def blocks_table(mix: Mix) -> pd.DataFrame:
    assignment = mix.candidates[mix.mixed or 0].assignment  # the first is all in int8
    return pd.DataFrame(
        {
            "first node": block.first,
            "last node": block.last,
            **{f"ms in {name}": f"{block.milliseconds[name]:.3f}" for name in mix.types},
            "in the best mix": chosen,
        }
        for chosen, block in zip(assignment, mix.blocks, strict=True)
    ).set_index("first node")

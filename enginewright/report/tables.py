"""The findings as tables, for the page and the summary alike, and as rows for plots."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from tabulate import tabulate

from enginewright.core.params.measuring import EAGER
from enginewright.core.text import file_size, first_few
from enginewright.measure.records import ENGINE, LAUNCHED, Factor, PeakMemory, Ratio, baseline_title
from enginewright.report.evidence import MOST_DEVIATION, Evidence, Findings, known_p99
from enginewright.report.metrics import batch_key, key_of
from enginewright.report.verdict import RAN_AS, recommend, verdict_on
from enginewright.report.where_time_goes import fit_line
from enginewright.report.wording import engine_metric, reasons

OWN_PROCESS = "in a process of its own"
NOT_BUILT = "not built"
CONTRADICTION = (
    f"An asterisk: in that pass, one at a time was more than {MOST_DEVIATION - 1:.0%} faster or slower than in the "
    "race. Trust how many times as many there were, not how many per second."
)
FEWEST_FOR_A_LINE = 3  # a line fits any two batch sizes


class Cell(NamedTuple):
    text: str
    metric: str | None = None  # the place of the same figure in metrics.json

    @property
    def look(self) -> str:
        return "bad" if self.text == "failed" else "faint" if self.text.startswith((RAN_AS, NOT_BUILT)) else ""


class Table(NamedTuple):
    """A table of the page. A browser can sort a column by the figures with which its cells begin."""

    caption: str
    columns: tuple[tuple[str, bool], ...]  # the name of each, and whether it holds figures
    rows: tuple[tuple[Cell, ...], ...]
    strong: str | None = None  # the first cell of the row that stands out


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> Table:
    cells = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    figures = [
        bool(cells) and all(re.match(r"-$|[-+]?\d", row[at].text) for row in cells) for at in range(len(columns))
    ]
    return Table(caption, tuple(zip(columns, figures, strict=True)), cells)


def of_frame(caption: str, frame: pd.DataFrame) -> Table:
    rows = [[str(cell) for cell in row] for row in frame.fillna("-").itertuples()]
    return table(caption, [str(frame.index.name or ""), *map(str, frame.columns)], rows)


def as_markdown(found: Table | pd.DataFrame) -> str:
    if isinstance(found, pd.DataFrame):
        return str(found.to_markdown(disable_numparse=True))
    rows = [[cell.text for cell in row] for row in found.rows]
    return str(tabulate(rows, [name for name, _ in found.columns], tablefmt="pipe", disable_numparse=True))


def facts(caption: str, found: Mapping[str, Any]) -> Table:
    """List names and values. Nested sections become dotted names."""

    def flat(section: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
        for name, value in section.items():
            if isinstance(value, Mapping) and value:
                yield from flat(value, f"{place}{name}.")
            elif isinstance(value, bool):
                yield f"{place}{name}", str(value).lower()
            else:
                listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
                yield f"{place}{name}", "-" if listed in ("", None, {}) else str(listed)

    return table(caption, ("name", "value"), list(flat(found, "")))


def _frame(rows: Mapping[str, Mapping[str, object]], index: str = "precision") -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(index)


def with_interval(times: Factor | Ratio) -> str:
    return f"{times.median:.2f} ({times.low:.2f} to {times.high:.2f})"


def overview(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> Table:
    batch, baseline = findings.tuned_batch, findings.baselines[0]
    columns = (
        "precision", "verdict", f"times {baseline_title(baseline)}", f"ms per batch of\N{NO-BREAK SPACE}{batch}",
        findings.precisions[0].validation.metric, "same answer", "relative error", "engine", "peak memory, MB",
    )  # fmt: skip
    rows = []
    for entry in findings.precisions:
        name, validation = entry.precision, entry.validation
        timed = f"{name}.{batch_key(findings, batch)}"
        rows.append(
            [
                Cell(name),
                Cell(verdict_on(entry, failures)),
                Cell(with_interval(findings.quoted(entry)), f"{timed}.speedup"),
                Cell(f"{findings.race.milliseconds[name]:.2f}", f"{timed}.p50_ms"),
                Cell(engine_metric(validation), f"{name}.{key_of(validation.main)}" if validation.main else None),
                Cell(f"{agreed.share:.2%}", f"{name}.same_answer_%") if (agreed := validation.agreement) else Cell("-"),
                Cell(f"{validation.engine_against_pytorch.relative:.1e}", f"{name}.relative_error_ppm"),
                Cell(file_size(entry.engine.bytes), f"{name}.engine_MB"),
                Cell(f"{entry.benchmark.peak_memory[ENGINE].host:.0f}", f"{name}.peak_MB"),
            ]
        )
    rows += [[Cell(name), Cell(NOT_BUILT), *[Cell("-")] * (len(columns) - 2)] for name in findings.refused]
    chosen = recommend(findings)
    return table("Every precision at a glance", columns, rows)._replace(strong=chosen.precision if chosen else None)


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
            "NaN or Inf": errors.nonfinite,
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


def spot_table(findings: Findings) -> pd.DataFrame:
    """Compare each engine at single batch sizes with itself: the metric, and how far its outputs differ."""
    rows: dict[str, dict[str, str]] = {}
    for entry in findings.precisions:
        for spot in entry.validation.spots:
            main = entry.validation.main
            metric = "-" if main is None or spot.metric is None else main.written(spot.metric)
            drift = f"{spot.drift:.1e}" if spot.drift else "0"
            rows.setdefault(entry.precision, {})[f"batch {spot.batch}"] = f"{metric}, {drift}"
    return _frame(rows)


def explain_spots(findings: Findings) -> str:
    validation = findings.precisions[0].validation
    return (
        f"At single batch sizes, over {validation.spots[0].samples} {findings.kind} or one batch: "
        f"{validation.metric}, and the relative error against the same engine's outputs on the full set, which ran at "
        "the largest batch size"
    )


def executed_table(findings: Findings) -> pd.DataFrame:
    rows = {}
    for entry in findings.precisions:
        engine = entry.engine
        if not engine.layers_are_known:
            others = "-"
        elif len(engine.not_as_asked) == len(engine.compute_layers):
            others = "all"
        else:  # a fused layer has the last of its names
            others = first_few([layer.name.split(",")[-1] for layer in engine.not_as_asked]) or "none"
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
    """Give the race of all engines, which decides: how many times as fast as the baseline each is, and how many times
    as fast as it the fastest is."""

    def written(times: Factor) -> str:
        return "-" if times.low == times.high == 1 else with_interval(times)

    race, fastest = findings.race, max(findings.precisions, key=lambda entry: findings.quoted(entry).median).precision
    rows = {
        name: {
            f"ms per batch of {race.batch}": f"{race.milliseconds[name]:.3f}",
            f"times {baseline_title(race.baseline)}": written(race.times(name, race.baseline)),
            f"{fastest} is times as fast": written(race.times(fastest, name)),
        }
        for name in (*(entry.precision for entry in findings.precisions), race.baseline)
    }
    return _frame(rows, index="in turns")


def latencies(findings: Findings) -> Table:
    """List each contender at each batch size. Ratios are to the baseline that ran beside the engine."""
    rows: list[list[Cell | str]] = []
    for title, entry, contender in _contenders(findings):
        for batch in findings.batches:
            latency, is_engine = entry.latency(batch, contender), contender == ENGINE
            key = f"{entry.precision}.{batch_key(findings, batch)}" if is_engine else None
            ratios: list[Cell | str] = []
            for name in findings.baselines:
                ratio = entry.ratio(batch, name)
                text = with_interval(ratio) + (" *" if reasons(findings, entry, ratio) else "")
                is_metric = key and name == findings.baselines[0]
                ratios.append(Cell(text, f"{key}.speedup" if is_metric else None) if is_engine else "-")
            rows.append(
                [
                    title,
                    str(batch),
                    Cell(f"{latency.p50:.2f}", key and f"{key}.p50_ms"),
                    f"{latency.p90:.2f}",
                    "-" if (p99 := known_p99(latency)) is None else Cell(f"{p99:.2f}", key and f"{key}.p99_ms"),
                    Cell(f"{latency.images_per_second:,.0f}", key and f"{key}.images_per_s"),
                    *ratios,
                ]
            )
    columns = ["contender", "batch", "p50, ms", "p90, ms", "p99, ms", f"{findings.kind}/s"]
    columns += [f"times {baseline_title(name)} (interval)" for name in findings.baselines]
    return table("Latency and how many times as fast", columns, rows)


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


def cost_table(findings: Findings) -> pd.DataFrame:
    """Give what any batch costs, and what each image adds. Empty if too few batch sizes were measured."""
    rows = {}
    for title, entry, contender in _contenders(findings) if len(findings.batches) >= FEWEST_FOR_A_LINE else []:
        line = fit_line(findings.batches, [entry.latency(batch, contender).p50 for batch in findings.batches])
        rows[title] = {
            "fixed, ms": f"{line.fixed:.3f}" if line.fits else "-",
            "per image, ms": f"{line.each:.3f}" if line.fits else "-",
            "off the line": f"{line.deviation:.1%}" + ("" if line.fits else ": does not fit a line"),
        }
    return _frame(rows)


def compute_table(findings: Findings) -> pd.DataFrame:
    """Give the median without the copies to the GPU and back, for each engine also in a process of its own."""
    found = {
        title: {batch: entry.latency(batch, contender).compute for batch in findings.batches}
        for title, entry, contender in _contenders(findings)
    }
    for entry in findings.precisions:
        if isolated := entry.benchmark.isolated_compute:
            found[f"{entry.precision}, {OWN_PROCESS}"] = {**isolated}
    return _frame(
        {
            title: {f"batch {batch}": "-" if taken is None else f"{taken:.3f}" for batch, taken in times.items()}
            for title, times in found.items()
        }
    )


def explain_own_process(findings: Findings) -> str:
    if not any(entry.benchmark.isolated_compute for entry in findings.precisions):
        return ""
    return f" Rows that say “{OWN_PROCESS}” were timed without other contenders, as an engine is deployed."


def gpu_table(findings: Findings) -> pd.DataFrame:
    """Give the state of the GPU while each engine was timed: at other clocks, ratios are other ones."""
    rows = {
        entry.precision: {
            "clock, MHz: low / median / high": f"{gpu.clock_low} / {gpu.clock_median} / {gpu.clock_high}",
            "memory clock, MHz": gpu.memory_clock,
            "power, W: median / high": f"{gpu.power_median:.0f} / {gpu.power_high:.0f}",
            "hottest, °C": gpu.temperature_high,
            "throttled": ", ".join(f"{name} {share:.0%} of the time" for name, share in gpu.throttled.items())
            or "never",
        }
        for entry in findings.precisions
        if (gpu := entry.benchmark.gpu)
    }
    return _frame(rows)


def throughputs(findings: Findings) -> Table:
    rows = [
        [
            entry.precision,
            str(one.batch),
            str(one.requests),
            f"{entry.images_per_second(one):,.0f}" + (" *" if one.requests > 1 and entry.contradicts_race(one) else ""),
            f"{entry.gain(one):.2f}",
            f"{one.p50:.2f}",
            "-" if (p99 := known_p99(one)) is None else f"{p99:.2f}",
        ]
        for entry in findings.precisions
        for one in entry.benchmark.throughput
    ]
    each = (f"{findings.kind}/s", "times one at a time", "p50, ms per request", "p99, ms per request")
    return table("Throughput", ("precision", "batch", "requests in flight", *each), rows)


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


def latency_rows(findings: Findings) -> pd.DataFrame:
    """Return a row for each engine and batch size, for plots."""
    return pd.DataFrame(
        {"precision": entry.precision, **entry.latency(batch).model_dump(exclude={"contender"})}
        for entry in findings.precisions
        for batch in findings.batches
    )


def tradeoff_rows(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> pd.DataFrame:
    """Return a row for each precision, for plots: its error and its speed."""
    return pd.DataFrame(
        {
            "precision": entry.precision,
            "metric": None if entry.validation.main is None else engine_metric(entry.validation),
            "relative_error": entry.validation.engine_against_pytorch.relative,
            "speedup": findings.quoted(entry).median,
            "speedup_low": findings.quoted(entry).low,
            "speedup_high": findings.quoted(entry).high,
            "verdict": verdict_on(entry, failures),
        }
        for entry in findings.precisions
    )

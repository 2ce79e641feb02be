"""The findings as tables."""

from collections.abc import Callable, Mapping

import pandas as pd

from enginewright.core.params.measuring import EAGER
from enginewright.core.text import file_size, first_few
from enginewright.measure.accuracy_records import Spot, Validation
from enginewright.measure.speed_records import (
    ENGINE,
    LAUNCHED,
    RUNS_FOR_P99,
    AtSize,
    Latency,
    PeakMemory,
    Throughput,
    baseline_title,
)
from enginewright.measure.timing import Factor
from enginewright.report.evidence import MOST_DEVIATION, Evidence, Findings
from enginewright.report.verdict import verdict_on
from enginewright.report.where_time_goes import fit_line
from enginewright.report.wording import engine_metric, reasons

OWN_PROCESS = "in a process of its own"
CONTRADICTION = (
    f"An asterisk: in that pass, one at a time was more than {MOST_DEVIATION - 1:.0%} faster or slower than in the "
    "race. Trust how many times as many there were, not how many per second."
)
FEWEST_FOR_A_LINE = 3  # a line fits any two batch sizes


def accuracy_table(findings: Findings) -> pd.DataFrame:
    rows = {
        entry.precision: {
            "thresholds": "passed" if entry.validation.passed else "FAILED",
            **_results(entry.validation),
            "cosine": f"{entry.validation.engine_against_pytorch.cosine:.6f}",
            "relative error": f"{entry.validation.engine_against_pytorch.relative:.1e}",
            "max abs error": f"{entry.validation.engine_against_pytorch.max_abs:.1e}",
            "mean abs error": f"{entry.validation.engine_against_pytorch.mean_abs:.1e}",
            "NaN or Inf": entry.validation.engine_against_pytorch.nonfinite,
        }
        for entry in findings.precisions
    }
    return _frame(rows)


def _results(validation: Validation) -> dict[str, str]:
    """Return the cells on what the task measures. If it could not be measured, two say so."""
    cells = {validation.metric: "-", "drop": "-"}
    for number, one in enumerate(validation.results):
        drop = f"{one.name} drop" if number else "drop"
        cells |= {one.name: one.written(one.engine), drop: one.drop_with_interval}
    agreed = validation.agreement
    return cells | ({agreed.name: agreed.share_with_interval} if agreed else {})


def blame_table(findings: Findings) -> pd.DataFrame:
    """Tell the errors of the graph's types from those of the compiler."""
    rows = {
        entry.precision: {
            "from the precision: graph to PyTorch": f"{entry.validation.graph_against_pytorch.relative:.1e}",
            "from the compiler: engine to graph": f"{entry.validation.engine_against_graph.relative:.1e}",
            "in total: engine to PyTorch": f"{entry.validation.engine_against_pytorch.relative:.1e}",
            **_of_graph_and_engine(entry.validation),
            "to blame": entry.validation.loss_comes_from if entry.validation.broken else "nothing broke",
        }
        for entry in findings.precisions
    }
    return _frame(rows)


def _of_graph_and_engine(validation: Validation) -> dict[str, str]:
    main, name = validation.main, validation.metric
    graph = "-" if main is None else main.written(main.graph)
    return {f"{name} of the graph": graph, f"{name} of the engine": engine_metric(validation)}


def spot_table(findings: Findings) -> pd.DataFrame:
    """Compare each engine at single batch sizes with itself: the metric, and how far its outputs differ."""
    rows = {
        entry.precision: {
            f"batch {spot.batch}": f"{_of_spot(entry, spot)}, {f'{spot.drift:.1e}' if spot.drift else '0'}"
            for spot in entry.validation.spots
        }
        for entry in findings.precisions
    }
    return _frame(rows)


def _of_spot(entry: Evidence, spot: Spot) -> str:
    main = entry.validation.main
    return "-" if main is None or spot.metric is None else main.written(spot.metric)


def explain_spots(findings: Findings) -> str:
    validation = findings.precisions[0].validation
    return (
        f"At single batch sizes, over {validation.spots[0].samples} {findings.kind} or one batch: "
        f"{validation.metric}, and the relative error against the same engine's outputs on the full set, which ran at "
        "the largest batch size"
    )


def executed_table(findings: Findings) -> pd.DataFrame:
    rows = {
        entry.precision: {
            "compute layers executed as": ", ".join(f"{count} {name}" for name, count in entry.engine.executed.items())
            or "not known",
            "as asked": f"{entry.engine.share_as_asked:.0%}" if entry.engine.layers_are_known else "-",
            "not as asked": _some_layers(entry),
        }
        for entry in findings.precisions
    }
    return _frame(rows)


def explain_tf32(findings: Findings) -> str:
    if not any("tf32" in entry.engine.executed for entry in findings.precisions):
        return ""
    return " tf32 is how a GPU multiplies float32 if build.tf32 allows it: with 11 bits of mantissa instead of 24."


def latency_table(findings: Findings) -> pd.DataFrame:
    """Give p50 / p90 / p99 in milliseconds per batch, p99 only if there are enough calls for it."""

    def cell(entry: Evidence, batch: int, contender: str) -> str:
        latency = entry.latency(batch, contender)
        p99 = "-" if (p99 := known_p99(latency)) is None else f"{p99:.2f}"
        return f"{latency.p50:.2f} / {latency.p90:.2f} / {p99}"

    return _by_batch(findings, cell)


def size_table(findings: Findings) -> pd.DataFrame:
    """Give the median latencies at each size of an axis of the user's, and how many times as fast as the baseline."""

    def row(entry: Evidence, contender: str) -> dict[str, str]:
        return {f"{each.axis} {each.size}": _at_size(each, contender) for each in entry.benchmark.sizes}

    return _frame(_by_contender(findings, row)) if findings.precisions[0].benchmark.sizes else _frame({})


def _at_size(each: AtSize, contender: str) -> str:
    found = next(one for one in each.latencies if one.contender == contender)
    times = f" ({each.ratios[0].median:.2f})" if contender == ENGINE and each.ratios else ""
    return f"{found.p50:.2f}{times}"


def cost_table(findings: Findings) -> pd.DataFrame:
    """Give what any batch costs, and what each image adds. Empty if too few batch sizes were measured."""

    def row(entry: Evidence, contender: str) -> dict[str, str]:
        line = fit_line(findings.batches, [entry.latency(batch, contender).p50 for batch in findings.batches])
        return {
            "fixed, ms": f"{line.fixed:.3f}" if line.fits else "-",
            "per image, ms": f"{line.each:.3f}" if line.fits else "-",
            "off the line": f"{line.deviation:.1%}" + ("" if line.fits else ": does not fit a line"),
        }

    if len(findings.batches) < FEWEST_FOR_A_LINE:
        return _frame({})
    return _frame(_by_contender(findings, row))


def compute_table(findings: Findings) -> pd.DataFrame:
    """Give the median without the copies to the GPU and back, for each engine also in a process of its own."""

    def cell(entry: Evidence, batch: int, contender: str) -> str:
        compute = entry.latency(batch, contender).compute
        return "-" if compute is None else f"{compute:.3f}"

    isolated = {
        f"{entry.precision}, {OWN_PROCESS}": {f"batch {batch}": f"{taken:.3f}" for batch, taken in times.items()}
        for entry in findings.precisions
        if (times := entry.benchmark.isolated_compute)
    }
    return pd.concat([_by_batch(findings, cell), _frame(isolated)])


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


def known_p99(timed: Latency | Throughput) -> float | None:
    """Return p99, or None: from few calls it is hardly more than the slowest of them."""
    return timed.p99 if timed.runs >= RUNS_FOR_P99 else None


def throughput_table(findings: Findings) -> pd.DataFrame:
    first = findings.precisions[0]
    rows = {
        f"{baseline_title(baseline)}, one at a time": {
            f"batch {batch}": f"{first.latency(batch, baseline).images_per_second:,.0f}" for batch in findings.batches
        }
        for baseline in findings.baselines
    }
    for entry in findings.precisions:
        for one in entry.benchmark.throughput:
            single = one.requests == 1
            mode = "one at a time" if single else f"{one.requests} at once"
            cell = f"{entry.images_per_second(one):,.0f}" + ("" if single else _gain_and_wait(entry, one))
            rows.setdefault(f"{entry.precision}, {mode}", {})[f"batch {one.batch}"] = cell
    return _frame(rows, index="")


def _gain_and_wait(entry: Evidence, measured: Throughput) -> str:
    wait = "" if (p99 := known_p99(measured)) is None else f", {p99:.1f} ms"
    return f" ({entry.gain(measured):.2f} times{wait})" + (" *" if entry.contradicts_race(measured) else "")


def race_table(findings: Findings) -> pd.DataFrame:
    """Give the race of all engines, which decides: how many times as fast as the baseline each is, and how many times
    as fast as it the fastest is."""
    race, fastest = findings.race, max(findings.precisions, key=lambda entry: findings.quoted(entry).median).precision
    rows = {
        name: {
            f"ms per batch of {race.batch}": f"{race.milliseconds[name]:.3f}",
            f"times {baseline_title(race.baseline)}": _written(race.times(name, race.baseline)),
            f"{fastest} is times as fast": _written(race.times(fastest, name)),
        }
        for name in (*(entry.precision for entry in findings.precisions), race.baseline)
    }
    return _frame(rows, index="in turns")


def _written(times: Factor) -> str:
    return "-" if times.low == times.high == 1 else f"{times.median:.2f} ({times.low:.2f} to {times.high:.2f})"


def ratio_table(findings: Findings) -> pd.DataFrame:
    """Give how many times as fast as each baseline an engine is, with the interval."""
    rows = {
        f"{entry.precision} over {baseline}": {
            f"batch {ratio.batch}": f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            + (" *" if reasons(findings, entry, ratio) else "")
            for ratio in entry.benchmark.ratios
            if ratio.baseline == baseline
        }
        for baseline in findings.baselines
        for entry in findings.precisions
    }
    return _frame(rows, index="")


def memory_table(findings: Findings) -> pd.DataFrame:
    rows = {
        entry.precision: {
            "ONNX": file_size(entry.engine.onnx_bytes),
            "engine": file_size(entry.engine.bytes) + (", and the ONNX file" if entry.engine.weights else ""),
            "peak memory, MB": _memory(entry.benchmark.peak_memory[ENGINE]),
            **({"PyTorch eager, MB": _memory(peak)} if (peak := entry.benchmark.peak_memory.get(EAGER)) else {}),
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


def _by_batch(findings: Findings, cell: Callable[[Evidence, int, str], str]) -> pd.DataFrame:
    def row(entry: Evidence, contender: str) -> dict[str, str]:
        return {f"batch {batch}": cell(entry, batch, contender) for batch in findings.batches}

    return _frame(_by_contender(findings, row))


def _by_contender(findings: Findings, row: Callable[[Evidence, str], dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return rows for the baselines, as they ran beside the first precision, and then for each engine."""
    first = findings.precisions[0]
    rows = {f"{baseline_title(name)}, beside {first.precision}": row(first, name) for name in findings.baselines}
    for entry in findings.precisions:
        rows[entry.precision] = row(entry, ENGINE)
        if entry.benchmark.cuda_graph:
            rows[f"{entry.precision}, launched one by one"] = row(entry, LAUNCHED)
    return rows


def _memory(peak: PeakMemory) -> str:
    return f"{peak.host:.0f}" + (f" + {peak.device:.0f} on the GPU" if peak.device else "")


def _frame(rows: Mapping[str, Mapping[str, object]], index: str = "precision") -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(index)


def _some_layers(entry: Evidence) -> str:
    """Name the compute layers that ran in another precision, a fused layer by the last of its names."""
    if not entry.engine.layers_are_known:
        return "-"
    if len(entry.engine.not_as_asked) == len(entry.engine.compute_layers):
        return "all"
    return first_few([layer.name.split(",")[-1] for layer in entry.engine.not_as_asked]) or "none"

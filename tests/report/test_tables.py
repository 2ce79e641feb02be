"""The tables of the report, and the rows of its plots."""

from dataclasses import replace

import pytest
from support.findings import on_gpu

from enginewright.report import tables
from enginewright.report.evidence import known_p99
from enginewright.report.metrics import latency_rows, metrics, tradeoff_rows
from enginewright.report.verdict import failures_of, sentence


def test_the_size_of_a_tiny_engine_is_in_kilobytes(findings, evidence):
    tiny = evidence("int8")
    tiny = replace(tiny, engine=tiny.engine.model_copy(update={"bytes": 12_340, "onnx_bytes": 45_600}))
    assert " The engine takes 12.3 kB." in sentence(findings(tiny))
    assert tables.memory_table(findings(tiny)).loc["int8"].tolist()[:2] == ["45.6 kB", "12.3 kB"]


def test_rates_with_several_requests_are_marked_if_the_pass_contradicts_the_race(findings, evidence):
    one = evidence("int8", (4.0, 3.8, 4.2))
    steady = one.latency(1).images_per_second
    measured = [
        each.model_copy(update={"images_per_second": steady * 0.95 * each.requests}) for each in one.throughputs(1)
    ]
    one = replace(one, benchmark=one.benchmark.model_copy(update={"throughput": tuple(measured)}))
    assert [one.images_per_second(each) for each in measured] == [steady, pytest.approx(1.9 * steady)]
    assert not one.contradicts_race(measured[1])
    slower = [each.model_copy(update={"images_per_second": each.images_per_second * 0.9}) for each in measured]
    one = replace(one, benchmark=one.benchmark.model_copy(update={"throughput": tuple(slower)}))
    assert one.contradicts_race(slower[1])
    few = slower[1].model_copy(update={"runs": 99})
    assert (known_p99(few), known_p99(slower[1])) == (None, 10.0)


def test_p99_of_few_calls_is_not_shown(findings, evidence):
    few = evidence("int8")
    latencies = tuple(latency.model_copy(update={"runs": 99}) for latency in few.benchmark.latencies)
    few = replace(few, benchmark=few.benchmark.model_copy(update={"latencies": latencies}))
    assert texts(tables.latencies(findings(few)))["int8", "1"][:3] == ["4.00", "4.40", "-"]
    assert "p99_ms" not in metrics(findings(few))["int8"]["batch_01"]


def texts(table, keys=2):
    """Return the texts of each row by the first cells."""
    return {row[:keys]: [*row[keys:]] for row in table.itertuples(name=None)}


def test_tables_have_a_row_per_precision_and_batch(findings, evidence):
    both = findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2)))
    latency = texts(tables.latencies(both))
    assert list(latency) == [
        (name, batch) for name in ("PyTorch eager, beside fp32", "fp32", "int8") for batch in ("1", "8")
    ]
    assert latency["int8", "8"] == ["16.00", "17.60", "24.00", "500", "4.00 (3.80 to 4.20) *"]
    assert latency["PyTorch eager, beside fp32", "1"][3:] == ["125", "-"]
    throughput = texts(tables.throughputs(both), keys=3)
    assert throughput["int8", "1", "1"][0] == "500"
    assert throughput["int8", "8", "2"] == ["800", "1.60", "4.00", "10.00"]
    assert tables.executed_table(both).loc["int8"].tolist() == ["2 int8, 1 fp32", "67%", "classifier"]
    assert tables.memory_table(both).loc["int8"].tolist() == ["45.6 MB", "12.3 MB", "150", "800", "1.2"]
    assert tables.blame_table(both).loc["int8"].tolist() == [
        "1.0e-02",
        "1.0e-03",
        "1.0e-02",
        "98.00%",
        "97.53%",
        "nothing broke",
    ]


def test_plots_get_a_row_per_point(findings, evidence):
    both = findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2)))
    latency = latency_rows(both)
    assert latency[["precision", "batch", "p50"]].values.tolist() == [
        ["fp32", 1, 8.0],
        ["fp32", 8, 64.0],
        ["int8", 1, 2.0],
        ["int8", 8, 16.0],
    ]
    tradeoff = tradeoff_rows(both).set_index("precision").loc["int8"]
    assert (tradeoff.speedup, tradeoff.speedup_low, tradeoff.speedup_high) == (4.0, 3.8, 4.2)
    assert (tradeoff.metric, tradeoff.relative_error) == ("97.53%", 0.01)


def test_the_plot_of_errors_gets_the_verdict_too(findings, evidence):
    found = findings(evidence("fp32"), evidence("fp16", executed="fp32"), evidence("int8", broken=("a",)))
    rows = tradeoff_rows(replace(found, failures=failures_of(found, {})))
    assert rows["verdict"].tolist() == ["passed", "ran as fp32", "failed"]


def test_compute_alone_has_a_row_per_contender(findings, evidence):
    table = tables.compute_table(findings(on_gpu(evidence("int8", (4.0, 3.8, 4.2)))))
    assert table.loc["int8"].tolist() == ["1.000", "8.000"]
    assert table.loc["int8, launched one by one"].tolist() == ["3.000", "24.000"]
    assert table.loc["PyTorch eager, beside int8"].tolist() == ["4.000", "32.000"]
    assert tables.compute_table(findings(evidence("int8"))).empty


@pytest.mark.parametrize(
    ("throttled", "said"),
    [({}, "never"), ({"power cap": 0.25, "thermal": 0.05}, "power cap 25% of the time, thermal 5% of the time")],
)
def test_the_state_of_the_gpu_has_a_row_per_engine(findings, evidence, throttled, said):
    table = tables.gpu_table(findings(on_gpu(evidence("int8"), throttled=throttled)))
    assert table.loc["int8"].tolist() == ["1200 / 1755 / 1980", "2619", "412 / 689", "61", said]


def test_memory_on_the_gpu_is_separate_and_left_out_where_it_is_hidden(findings, evidence):
    both = findings(on_gpu(evidence("int8")))
    assert tables.memory_table(both).loc["int8"].tolist()[2:4] == ["450 + 612 on the GPU", "900"]
    assert metrics(both)["int8"]["peak_GPU_MB"] == 612
    assert "peak_GPU_MB" not in metrics(findings(evidence("int8")))["int8"]

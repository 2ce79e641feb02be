"""The report on layers."""

import re
from dataclasses import replace

from support.findings import summary_of

from enginewright.engine.record import LayerTime
from enginewright.report.where_time_goes import OVERSTATED


def traced(entry, **milliseconds):
    """Return evidence with other times of these layers. New layers are reorders."""
    layers = {layer.name: layer for layer in entry.trace.layers}
    for name, taken in milliseconds.items():
        new = LayerTime(name=name, kind="Reorder", precision="int8", computes=False, milliseconds=0)
        layers[name] = layers.get(name, new).model_copy(update={"milliseconds": taken})
    return replace(entry, trace=entry.trace.model_copy(update={"layers": tuple(layers.values())}))


def layers_section(page):
    return page.split("\n## Where the time goes\n")[1].split("\n## ")[0]


def cost_of(precision, page):
    return layers_section(page).split(f"### What {precision} gained and lost, layer by layer\n")[1]


def test_the_slowest_layers_are_listed_with_their_shares_and_the_latency(findings, evidence):
    page = layers_section(summary_of(findings(evidence("fp32", (1.0, 0.9, 1.1)))))
    assert "Medians over 48 calls at batch 8" in page
    assert "60.00 ms in 4 layers; the latency is 64.00 ms. All of them, the slowest first:" in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| conv")]
    assert rows == [
        ["conv1", "30.000", "50.0%", "Convolution", "fp32"],
        ["conv2", "20.000", "33.3%", "Convolution", "fp32"],
    ]
    assert "What fp32 gained" not in page


def test_ten_of_many_layers_are_listed(findings, evidence):
    many = traced(evidence("fp32"), **{f"node_{number}": 100.0 + number for number in range(60)})
    told = layers_section(summary_of(findings(many)))
    assert re.search(r"ms in 64 layers;.* The 10 slowest:\n", told)
    rows = [line for line in told.splitlines() if line.startswith("| node_")]
    assert [row.split()[1] for row in rows] == [f"node_{number}" for number in range(59, 49, -1)]


def test_a_sum_far_from_the_latency_comes_with_a_warning(findings, evidence):
    page = layers_section(summary_of(findings(traced(evidence("fp32", (1.0, 0.9, 1.1)), conv1=100.0))))
    assert f"130.00 ms in 4 layers; the latency is 64.00 ms. {OVERSTATED}" in page


def test_slower_layers_are_listed_with_their_times_in_the_fastest_unquantized_precision(findings, evidence):
    fp32, bf16 = evidence("fp32", (1.0, 0.9, 1.1)), evidence("bf16", (2.0, 1.9, 2.1))
    cost = cost_of("int8", summary_of(findings(fp32, bf16, traced(evidence("int8", (4.0, 3.9, 4.1)), conv2=12.0))))
    assert "Compute layers shared with bf16, the fastest precision that is not quantized: 3." in cost
    assert "They take 21.50 ms here and 29.00 ms there. Clearly slower here: 1, by 2.00 ms in total:" in cost
    (row,) = [line for line in cost.splitlines() if line.startswith("| conv")]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("conv2", "12.000", "10.000", "2.000"),
        *("Convolution", "int8"),
    ]


def test_one_sentence_says_that_no_layer_became_slower(findings, evidence):
    page = summary_of(findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2))))
    assert cost_of("int8", page).strip() == (
        "Compute layers shared with fp32, the fastest precision that is not quantized: 3. They take 14.50 ms here and "
        "58.00 ms there. No layer became clearly slower."
    )


def test_layers_that_only_one_precision_has_are_counted_with_their_time(findings, evidence):
    int8 = traced(evidence("int8", (4.0, 3.8, 4.2)), quantize=1.5, reorder_2=0.5)
    cost = cost_of("int8", summary_of(findings(traced(evidence("fp32", (1.0, 0.9, 1.1)), cast=0.25), int8)))
    assert (
        "Layers that only int8 has take 2.00 ms, 11.8% of its time: 2 Reorder. "
        "Layers that only fp32 has take 0.25 ms there."
    ) in cost


def test_layers_that_cannot_be_matched_are_not_compared(findings, evidence):
    fp32, int8 = evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2))

    def renamed(*names):
        given = [layer.model_copy(update={"name": new}) for layer, new in zip(int8.trace.layers, names, strict=True)]
        return replace(int8, trace=int8.trace.model_copy(update={"layers": tuple(given)}))

    some = cost_of("int8", summary_of(findings(fp32, renamed("__myl_1", "__myl_2", "classifier", "reorder"))))
    assert "Compute layers shared with fp32, the fastest precision that is not quantized: 1." in some
    assert "Not compared, because no layer of fp32 has their names: __myl_1, __myl_2." in some
    none = cost_of("int8", summary_of(findings(fp32, renamed("__myl_1", "__myl_2", "__myl_3", "__myl_4"))))
    assert none.strip() == "None of its layers shares a name with a layer of fp32, so they cannot be compared."


def test_a_runtime_that_reports_no_times_is_named(findings, evidence):
    fp32, int8 = evidence("fp32"), evidence("int8")
    untold = replace(int8, trace=int8.trace.model_copy(update={"layers": ()}))
    page = layers_section(summary_of(findings(fp32, untold)))
    assert "### int8\n\nOpenVINO reports no times of its layers." in page
    assert page.endswith("There are no layer times to compare.\n")
    alone = layers_section(summary_of(findings(int8)))
    assert alone.endswith("There are no layer times to compare.\n")


def test_layers_of_unknown_kinds_are_listed_with_their_times(findings, evidence):
    """Of an engine that could not be inspected, the profiler tells names all the same."""

    def unknown(entry):
        what = {"kind": "unknown", "precision": "unknown", "computes": False}
        layers = tuple(layer.model_copy(update=what) for layer in entry.trace.layers)
        return replace(
            entry,
            engine=entry.engine.model_copy(update={"layers": ()}),
            trace=entry.trace.model_copy(update={"layers": layers}),
        )

    page = summary_of(findings(unknown(evidence("fp32", (1.0, 0.9, 1.1))), unknown(evidence("int8"))))
    assert "| conv1      | 30.000 | 50.0%   | unknown | unknown       |" in page
    assert "Layers shared with fp32, the fastest precision that is not quantized: 4." in cost_of("int8", page)

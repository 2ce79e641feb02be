"""The pictures as files, which Markdown shows."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from support.findings import raced_twice
from support.pages import HOSTILE, nights_of, page_of

from enginewright.report.page.pictures import trend_rows, write_pictures

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def drawn(tmp_path):
    """Write the pictures, and return each as a tree by its name."""

    def drawn(found, failures=None, nights=None):
        judged = replace(found, failures=failures or {})
        write_pictures(judged, trend_rows([]) if nights is None else nights, tmp_path)
        return {file.name: ElementTree.fromstring(file.read_text()) for file in tmp_path.iterdir()}

    return drawn


def classes(tree, tag):
    return [each.get("class") for each in tree.iter(f"{SVG}{tag}")]


def test_pictures_are_drawn_for_every_precision(findings, evidence, drawn):
    every = [evidence(name) for name in ("fp32", "fp16", "bf16", "int8", "fp8")]
    pictures = drawn(findings(*every))
    assert sorted(pictures) == ["latency.svg", "throughput.svg", "tradeoff.svg"]
    for tree in pictures.values():
        words = {text.text.removesuffix(" *") for text in tree.iter(f"{SVG}text")}
        assert {entry.precision for entry in every} <= words
    assert "trend.svg" in drawn(findings(*every), nights=nights_of([4.0, 3.0]))


def test_a_file_has_its_own_colours_and_needs_nothing_else(findings, evidence, drawn, tmp_path):
    drawn(findings(evidence("int8")), nights=nights_of([4.0, 3.0], setting=HOSTILE))
    for file in tmp_path.iterdir():
        content = file.read_text()
        assert not re.search(r"var\(|light-dark|url\(|href|<script|@import", content)
        assert ".chart .grid { stroke: #e3e0d8; }" in content
        assert content.count("\n.chart ") > 25


def test_a_file_shows_what_the_page_shows(findings, evidence, drawn):
    found = findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.9, 4.1)))
    page = page_of(found)
    for tree in drawn(found).values():
        for text in tree.iter(f"{SVG}text"):
            assert f">{text.text}</" in page


def test_the_names_of_all_contenders_fit_into_the_picture(findings, evidence, drawn):
    entry = evidence("fp16")
    for launched in ("eager", "cuda_graph", "max_autotune"):
        entry = raced_twice(entry, f"{launched}+channels_last+fp16")
    latency = drawn(findings(entry))["latency.svg"]
    for chart in latency.findall(f"{SVG}svg"):
        labels = [each for each in chart.iter(f"{SVG}text") if each.get("class").startswith("label")]
        assert len({each.get("y") for each in labels}) > 5
        longest = max(len(each.text) for each in labels)
        assert 6.5 * longest < float(chart.get("x")) % 430


def test_precisions_that_cannot_be_shipped_are_hollow_or_failed_and_not_on_the_staircase(findings, evidence, drawn):
    found = findings(
        evidence("fp32", (1.0, 0.9, 1.1), relative=1e-6),
        evidence("fp16", (9.0, 8.9, 9.1), relative=1e-7, executed="fp32"),
        evidence("bf16", (0.9, 0.8, 1.0), relative=1e-5),  # slower than fp32, and further off
        evidence("int8", (4.0, 3.9, 4.1), relative=1e-2),
        evidence("fp8", (3.0, 2.9, 3.1), relative=1e-3),
    )
    error, _ = drawn(found, {"fp8": ("it does not pay",)})["tradeoff.svg"].findall(f"{SVG}svg")
    dots = {each.find(f"{SVG}title").text.partition(":")[0]: each for each in error.iter(f"{SVG}circle")}
    looks = {name: each.get("class").removeprefix("dot ") for name, each in dots.items()}
    assert looks == {"fp32": "plain", "fp16": "hollow", "bf16": "plain", "int8": "strong", "fp8": "failed"}
    across, down = (each for each in error.iter(f"{SVG}line") if each.get("class") == "stair")
    fast, slow = dots["int8"], dots["fp32"]
    assert (across.get("x1"), across.get("x2")) == (fast.get("cx"), slow.get("cx"))
    assert across.get("y1") == across.get("y2") == fast.get("cy"), (
        "between the two only the faster one's error is there"
    )
    assert (down.get("y1"), down.get("y2")) == (fast.get("cy"), slow.get("cy"))


def test_a_noisy_speed_has_an_asterisk_as_in_the_tables(findings, evidence, drawn):
    pictures = drawn(findings(evidence("fp32", (1.0, 0.99, 1.01)), evidence("int8", (4.0, 2.0, 6.0))))
    error, _ = pictures["tradeoff.svg"].findall(f"{SVG}svg")
    names = [each.text for each in error.iter(f"{SVG}text") if each.get("class").startswith("figure")]
    assert names == ["fp32", "int8 *"]

"""The static pictures."""

from itertools import combinations

import pytest
from matplotlib.transforms import Bbox
from support.findings import raced_twice

from enginewright.report import tables
from enginewright.report.figures import draw_figures


@pytest.fixture
def drawn(monkeypatch):
    """Return the list of drawn pictures: latency, throughput, trade-off."""
    pictures = []
    monkeypatch.setattr("enginewright.report.figures.plt.close", pictures.append)
    return pictures


def test_pictures_are_drawn_for_every_precision(findings, evidence, tmp_path):
    every = [evidence(name) for name in ("fp32", "fp16", "bf16", "int8", "fp8")]
    draw_figures(findings(*every), {}, tmp_path)
    pictures = sorted(tmp_path.iterdir())
    assert [picture.name for picture in pictures] == ["latency.png", "throughput.png", "tradeoff.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_the_names_of_all_contenders_fit_into_the_picture(findings, evidence, tmp_path, drawn):
    entry = evidence("fp16")
    for launched in ("eager", "cuda_graph", "max_autotune"):
        entry = raced_twice(entry, f"{launched}+channels_last+fp16")
    draw_figures(findings(entry), {}, tmp_path)
    for figure in drawn[:2]:
        legend, whole = figure.axes[0].get_legend().get_window_extent(), figure.bbox
        assert len(figure.axes[0].get_legend().texts) == 5
        assert whole.x0 <= legend.x0 < legend.x1 <= whole.x1
        assert legend.y1 <= whole.y1
        assert figure.axes[0].get_window_extent().width > 0.8 * whole.width


def test_precisions_that_cannot_be_shipped_are_hollow_and_not_on_the_staircase(findings, evidence, tmp_path, drawn):
    found = findings(
        evidence("fp32", (1.0, 0.9, 1.1), relative=1e-6),
        evidence("fp16", (9.0, 8.9, 9.1), relative=1e-7, executed="fp32"),
        evidence("bf16", (0.9, 0.8, 1.0), relative=1e-5),  # slower than fp32, and further off
        evidence("int8", (4.0, 3.9, 4.1), relative=1e-2),
        evidence("fp8", (3.0, 2.9, 3.1), relative=1e-3),
    )
    draw_figures(found, {"fp8": ("it does not pay",)}, tmp_path)
    latency, _, tradeoff = (figure.axes[0] for figure in drawn)
    hollow = [bar.get_facecolor() == (1, 1, 1, 1) for bar in latency.patches[::2]]
    assert hollow == [False, False, True, False, False, False], "eager and the five precisions"
    stairs, *dots = (line for line in tradeoff.lines if line.get_marker() != "|")
    assert stairs.get_xydata().tolist() == [[4.0, 1e-2], [1.0, 1e-6]]
    assert stairs.get_drawstyle() == "steps-post", "at a speed between the two there is only the faster one's error"
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [False, True, False, False, True]


def test_a_noisy_speed_has_an_asterisk_as_in_the_tables(findings, evidence, tmp_path, drawn):
    draw_figures(findings(evidence("fp32", (1.0, 0.99, 1.01)), evidence("int8", (4.0, 2.0, 6.0))), {}, tmp_path)
    tradeoff = drawn[-1].axes[0]
    names = [text.get_text().partition(",")[0] for text in tradeoff.texts]
    assert names == ["fp32", "int8 *"]
    assert "*: noisy" in tradeoff.get_title(loc="left")


def test_no_name_in_the_picture_lies_on_a_dot_or_another_name(crowded, tmp_path, drawn):
    draw_figures(crowded, {}, tmp_path)
    axes = drawn[2].axes[0]
    names = [text.get_window_extent() for text in axes.texts]
    rows = tables.tradeoff_rows(crowded, {})
    middles = axes.transData.transform(rows[["speedup", "relative_error"]])
    radius = axes.lines[1].get_markersize() / 2 * drawn[2].dpi / 72
    dots = [Bbox.from_bounds(x - radius, y - radius, 2 * radius, 2 * radius) for x, y in middles]
    assert len(names) == len(dots) == 5
    assert [name for name in names if name.count_overlaps(dots)] == []
    assert [first for first, second in combinations(names, 2) if first.overlaps(second)] == []

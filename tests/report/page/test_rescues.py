"""The table of rescues, and what `rescue` prints."""

from support.pages import Reader, background_of, page_of

from enginewright.precision.records import Rescue, TriedRescue
from enginewright.report.tables import rescue_table


def record(error=0.2, tried=(), kept=(), enough=0.01):
    return Rescue(precision="int8", samples=(32, 64), error=error, at_once=error, tried=tried, kept=kept, enough=enough)


TRIED = record(
    tried=(
        TriedRescue(names=("equalize",), error=None, at_once=None),
        TriedRescue(names=("round",), error=0.15, at_once=0.16),
        TriedRescue(names=("equalize", "round"), error=0.21, at_once=0.22),
    ),
    kept=("round",),
)


def rows(found):
    return [[*row] for row in rescue_table(found).itertuples(name=None)]


def test_the_table_says_what_each_brought():
    assert rows(TRIED) == [
        ["as calibrated", "20.00% (20.00%)", "-"],
        ["equalize", "-", "does not apply to this graph"],
        ["round", "15.00% (16.00%)", "-25%, kept"],
        ["equalize and round", "21.00% (22.00%)", "+5%, not kept"],
    ]
    assert "with equalize nothing changes, with round 15.00% (16.00%)" in TRIED.in_words()
    assert TRIED.in_words().endswith("; round is kept")


def test_the_layers_that_a_rescue_spares_are_named():
    tried = *TRIED.tried, TriedRescue(names=("round", "spare"), error=0.1, at_once=0.1)
    found = TRIED.model_copy(update={"tried": tried, "kept": ("round", "spare"), "spared": ("head", "sum")})
    assert rows(found)[-1] == ["round and spare", "10.00% (10.00%)", "-50%, kept: head, sum in floating point"]
    assert found.in_words().endswith("; round and spare is kept, which leaves head, sum in floating point")


def test_the_table_says_why_less_is_tried():
    close = record(0.003, (TriedRescue(names=("round",), error=0.002, at_once=0.002),), ("round",))
    assert rows(close) == [
        ["as calibrated", "0.30% (0.30%)", "below 1%, so that only what is quick was tried"],
        ["round", "0.20% (0.20%)", "-33%, kept"],
    ]
    assert rows(record(enough=None)) == [["as calibrated", "20.00% (20.00%)", "no rescue is asked for"]]


def test_the_page_has_the_table(usual):
    page = Reader(page_of(usual, background_of(rescues={"int8": TRIED})))
    assert "32 calibration samples: the relative error of the outputs of 64 others" in page.text
    assert "-25%, kept" in page.text
    assert "before its channels were scaled" not in page.text
    scaled = TRIED.model_copy(update={"kept": ("equalize", "round")})
    page = Reader(page_of(usual, background_of(rescues={"int8": scaled})))
    assert "This is the graph before its channels were scaled for int8, which has ranges of its own." in page.text

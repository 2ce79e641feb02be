"""The report says how many samples a second an engine serves within a latency."""

import pytest
from support.findings import summary_of
from support.pages import page_of

from enginewright.report.page.pictures import within_pictures
from enginewright.report.tables import within_table


def test_a_table_and_a_picture_say_what_was_delivered(findings, served):
    found = findings(served("fp32", 1.0, 0.0), served("int8", 4.0, 1000.0))
    none = "none: p99 is 6.50 ms at least"
    told = "1,000, p99 4.50 ms (4.25 to 4.75): batch 8, 2 in flight"
    assert within_table(found).loc["fp32"].tolist() == [none, "-", none]
    assert within_table(found).loc["int8"].tolist() == [f"{told}, delay 0.50 ms", "1,100 (1,050 to 1,150)", told]
    (figure,) = within_pictures(found)
    assert "int8: 1,100 within 5 ms, 2,000 within 10 ms" in str(figure.picture)
    for page in (summary_of(found), page_of(found)):
        assert "Within 5 ms" in page
        assert told in page


def test_nothing_is_said_where_no_latency_is_asked_for(findings, evidence):
    found = findings(evidence("int8"))
    assert within_pictures(found) == []
    assert "Within" not in summary_of(found) + page_of(found)


@pytest.mark.parametrize(("rate", "told"), [(1000.0, False), (1050.0, False), (1300.0, True)])
def test_a_note_says_where_another_precision_than_the_fastest_surely_serves_more(findings, served, rate, told):
    """int8 is the fastest in the race."""
    page = summary_of(findings(served("fp32", 1.0, rate), served("int8", 4.0, 1000.0)))
    assert page.startswith("# Which precision to ship\n\n**Ship int8:**")
    assert ("- **fp32 serves more within 5 ms:** 1,430 images/s at random times, and int8 1,100" in page) == told

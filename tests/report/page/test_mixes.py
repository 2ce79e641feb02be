"""A mix in the report: promised beside delivered, and nothing recommended that does not deliver."""

from dataclasses import replace

import pytest
from support.findings import summary_of
from support.mixes import mix_with

from enginewright.engine.record import Speedup
from enginewright.precision.records import BlockTimes, Candidate
from enginewright.report.tables import blocks_table, candidates_table
from enginewright.report.verdict import recommend, verdict_on


def times(middle):
    return Speedup(middle=middle, low=middle - 0.1, high=middle + 0.1)


def mixed(delivered, floating=(), traces=None, types=("int8", "fp32")):
    blocks = [
        BlockTimes(first=f"conv{one}", last=f"relu{one}", milliseconds={"int8": 1 + one, "bf16": 3, "fp32": 2 - one})
        for one in range(2)
    ]
    candidates = [
        Candidate(assignment=assignment, spent=0.125, promised=times(1.4), raced=None if traces else 1.3)
        for assignment in (*((each, each) for each in types), ("int8", "fp32"))
    ]
    return mix_with(
        types,
        traces,
        blocks=tuple(blocks),
        candidates=tuple(candidates),
        mixed=len(types),
        rival="int8",
        promised=times(1.4),
        delivered=None if delivered is None else times(delivered),
        floating={"fp32": floating} if floating else {},
    )


CASES = {
    "a mix that won": (mixed(1.2, ("conv1",)), "best", "passed", "parts in fp32: layer times promised 1.400 times"),
    "a mix of one": (mixed(1.05), "int8", "is int8", "a race delivered 1.050 times (0.950 to 1.150). So it is not"),
    "a mix by traces": (
        mixed(None, ("conv1",), "data/traces/x"),
        "int8",
        "not raced",
        "those of data/traces/x, from a board. So it",
    ),
}


@pytest.mark.parametrize(("mix", "shipped", "verdict", "note"), CASES.values(), ids=list(CASES))
def test_only_a_mix_that_delivers_is_recommended(findings, evidence, mix, shipped, verdict, note):
    best = replace(evidence("best", (4.0, 3.9, 4.1), executed="int8"), mix=mix)
    found = findings(evidence("int8", (3.0, 2.9, 3.1)), best)
    assert recommend(found).precision == shipped
    assert verdict_on(found, best) == verdict
    (line,) = (line for line in summary_of(found).splitlines() if line.startswith("- **What best is:**"))
    assert note in line


def test_a_note_names_the_float_precision_that_would_have_been_better_to_mix(findings, evidence):
    best = replace(evidence("best", (2.0, 1.9, 2.1), executed="int8"), mix=mixed(1.05))
    floats = [evidence("fp32", (2.0, 1.9, 2.1)), evidence("bf16", (4.0, 3.9, 4.1))]
    page = summary_of(findings(evidence("int8", (1.9, 1.8, 2.0)), best, *floats))
    assert "bf16 is 2.00 times as fast as fp32 here: set `mix.best.floating` to it." in page
    assert "there). Mixing was tried: best is int8" in page
    all_mixed = replace(best, mix=mixed(1.05, types=("int8", "bf16", "fp32")))
    for others in ([best, floats[0]], [all_mixed, *floats]):
        assert "set `mix.best.floating`" not in summary_of(findings(evidence("int8"), *others))


def test_a_mix_is_read_with_its_engine(written, findings, evidence):
    int8, best = evidence("int8"), replace(evidence("best"), mix=mixed(1.05))
    assert written(int8, best)("int8", "best") == findings(int8, best)


def test_the_page_has_all_candidates_and_all_parts():
    rows = [[*row] for row in candidates_table(mixed(1.2, ("conv1",))).itertuples(name=None)]
    assert rows[1:] == [
        ["fp32", "2 of 2", "1.400 (1.300 to 1.500)", "1.300", "-", "12%"],
        ["mix 1", "1 of 2", "1.400 (1.300 to 1.500)", "1.300", "1.200 (1.100 to 1.300)", "12%"],
    ]
    assert [*blocks_table(mixed(1.2)).loc["conv1"]] == ["relu1", "2.000", "1.000", "fp32"]
    of_three = mixed(1.2, types=("int8", "bf16", "fp32"))
    assert [[*row[:3]] for row in candidates_table(of_three).itertuples(name=None)] == [
        ["int8", "0 of 2", "0 of 2"],
        ["bf16", "2 of 2", "0 of 2"],
        ["fp32", "0 of 2", "2 of 2"],
        ["mix 1", "0 of 2", "1 of 2"],
    ]
    assert [*blocks_table(of_three).loc["conv1"]] == ["relu1", "2.000", "3.000", "1.000", "fp32"]

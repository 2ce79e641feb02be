"""Timings in the form of `trtexec --exportTimes`: written, read and compared."""

import json

import numpy as np
import pytest
from support.errors import error_of

from enginewright.cli.commands import compare as command
from enginewright.cli.main import build_parser
from enginewright.engine.machine import Moments
from enginewright.measure.exported_times import (
    compare_times,
    find_exported_times,
    read_exported_times,
    write_exported_times,
)
from enginewright.measure.records import Outcome

# Two inferences as exportJSONTrace in NVIDIA's samples/common/sampleReporting.cpp writes them, with its spaces.
BY_TRTEXEC = """\
[
  { "startEnqMs" : 0.0131, "endEnqMs" : 0.0212, "startH2dMs" : 0.01331, "endH2dMs" : 0.06413, "startComputeMs" : 0.0652\
, "endComputeMs" : 0.56429, "startD2hMs" : 0.5654, "endD2hMs" : 0.57011, "h2dMs" : 0.05082, "computeMs" : 0.49909\
, "d2hMs" : 0.00471, "latencyMs" : 0.55462 }
, { "startEnqMs" : 1.6e+06, "endEnqMs" : 1.6e+06, "startH2dMs" : 1.6e+06, "endH2dMs" : 1.6e+06, "startComputeMs" : 2\
, "endComputeMs" : 2.5, "startD2hMs" : 2.5, "endD2hMs" : 2.5, "h2dMs" : 0, "computeMs" : 0.5\
, "d2hMs" : 0, "latencyMs" : 0.5 }
]
"""


@pytest.fixture
def times(tmp_path):
    """Make up a file of calls around a time of compute, in milliseconds."""

    def write(name, compute, copies=0.1, calls=400, noise=0.02, seed=0):
        drawn = compute * np.exp(np.random.default_rng(seed).normal(0, noise, calls))
        starts = np.arange(calls) * (compute + 2 * copies)
        ends = np.cumsum([starts, np.full(calls, copies), drawn, np.full(calls, copies)], axis=0) / 1000
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_exported_times([Moments(start, start, *each) for start, each in zip(starts, ends.T, strict=True)], path)
        return path

    return write


def test_a_file_of_trtexec_is_read(tmp_path):
    (tmp_path / "times.json").write_text(BY_TRTEXEC)
    first, second = read_exported_times(tmp_path / "times.json").calls
    assert (first.copies_in, first.compute, first.copies_out, first.latency) == (0.05082, 0.49909, 0.00471, 0.55462)
    assert (second.copies_in, second.compute) == (0, 0.5)


def test_ours_has_the_fields_of_trtexec_and_the_parts_add_up(tmp_path):
    write_exported_times([Moments(0.5, 0.501, 0.499, 0.5, 0.504, 0.5045)], tmp_path / "ours.json")
    (ours,) = json.loads((tmp_path / "ours.json").read_text())
    assert list(ours) == list(json.loads(BY_TRTEXEC)[0])
    assert ours["startComputeMs"] == ours["endH2dMs"] == 500
    assert (ours["h2dMs"], ours["computeMs"], ours["d2hMs"], ours["latencyMs"]) == (1, 4, 0.5, 5.5)


@pytest.mark.parametrize(
    ("after", "outcome"), [(0.5, Outcome.NO_CHANGE), (0.6, Outcome.REGRESSION), (0.4, Outcome.IMPROVEMENT)]
)
def test_a_change_counts_where_it_is_more_than_chance(times, after, outcome):
    before, later = (read_exported_times(times(f"{value}.json", value, seed=value > 0.5)) for value in (0.5, after))
    latency, compute = compare_times(before, later, 0.99)
    assert (latency.outcome, compute.outcome) == (outcome, outcome)
    assert compute.before == pytest.approx(0.5, rel=0.01)
    assert latency.before == pytest.approx(0.7, rel=0.01)
    assert 0.05 < compute.slack < 0.15, "two runs of one engine differ by more than their timings show"


def test_without_the_copies_only_the_compute_is_compared(times):
    ours, without = read_exported_times(times("a.json", 0.5)), read_exported_times(times("b.json", 0.5, copies=0))
    latency, compute = compare_times(ours, without, 0.99)
    assert latency.outcome is Outcome.NOT_COMPARABLE
    assert "no copies were timed in" in latency.why
    assert "b.json: trtexec does with --includeDataTransfers" in latency.why
    assert compute.outcome is Outcome.NO_CHANGE


@pytest.mark.parametrize(
    ("made", "why"),
    [({"calls": 99}, "has 99 timings, and 100 are needed"), ({"compute": 0}, "says that it took no time")],
)
def test_timings_that_say_nothing_are_not_comparable(times, made, why):
    few = read_exported_times(times("few.json", **{"compute": 0.5} | made))
    _, compute = compare_times(few, few, 0.99)
    assert compute.outcome is Outcome.NOT_COMPARABLE
    assert why in compute.why


VALID = {"h2dMs": 0, "computeMs": 1, "d2hMs": 0, "latencyMs": 1}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "is not what trtexec --exportTimes writes (Invalid JSON: EOF while parsing a list"),
        ("[]", "has no timings: measure for longer"),
        ("[1]", "(Input should be an object)"),
        (json.dumps([VALID, {"computeMs": 1}]), "(inference 1, h2dMs: Field required)"),
        (
            json.dumps([VALID | {"computeMs": -1}]),
            "(inference 0, computeMs: Input should be greater than or equal to 0)",
        ),
        (json.dumps([VALID | {"computeMs": 1e308}]), "(inference 0, computeMs: Input should be less than 10000"),
        (json.dumps([VALID | {"computeMs": "1"}]), "(inference 0, computeMs: Input should be a valid number)"),
        (
            json.dumps([VALID | {"latencyMs": float("nan")}]),
            "(inference 0, latencyMs: Input should be a finite number)",
        ),
        ("[" * 100_000, "(Invalid JSON: recursion limit exceeded"),
    ],
)
def test_a_file_that_is_something_else_is_one_sentence(tmp_path, content, said):
    (tmp_path / "times.json").write_text(content)
    assert said in error_of(read_exported_times, tmp_path / "times.json")


def test_the_other_side_may_be_a_reports_folder_with_one_such_file(times, tmp_path):
    one = times("reports/benchmark/int8/times_batch_8.json", 0.5)
    assert find_exported_times(str(tmp_path / "reports")) == read_exported_times(one)
    times("reports/benchmark/int8/times_batch_1.json", 0.5)
    assert error_of(find_exported_times, str(tmp_path / "reports")).endswith(
        f"has several files of timings: give one of {one.with_name('times_batch_1.json')}, {one}"
    )
    for nothing in (tmp_path, "HEAD~1"):
        assert error_of(find_exported_times, str(nothing)) == (
            f"{nothing} is no file of trtexec --exportTimes, as the other side is, and no reports folder with one: on "
            "a GPU, `dvc repro` writes reports/benchmark/*/times_batch_*.json"
        )


def test_the_command_compares_them(times, capsys):
    before, after = (str(times(f"{value}.json", value)) for value in (0.5, 0.6))

    def compare(*arguments):
        return command.run(build_parser().parse_args(["compare", *arguments]))

    assert compare(before, after) == 3
    printed = capsys.readouterr().out
    assert "GPU compute" in printed
    assert "Timings alone were compared" in printed
    assert max(map(len, printed.splitlines())) < 80
    assert compare(after, before, "--json") == 0
    assert [row["figure"] for row in json.loads(capsys.readouterr().out)] == ["latency with copies", "GPU compute"]
    assert compare(before, str(times("without.json", 0.5, copies=0))) == 4
    assert "--race needs the engines of two runs" in error_of(compare, before, after, "--race")
    assert "HEAD~1 is no file of trtexec" in error_of(compare, before, "HEAD~1")

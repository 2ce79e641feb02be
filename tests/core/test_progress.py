"""Lines of progress in a log say what is counted, and never count more than there is."""

import os
from types import SimpleNamespace

import pytest

from enginewright.core import progress as module
from enginewright.core.progress import SECONDS_BETWEEN_LINES, Phases, progress


@pytest.fixture
def clock(monkeypatch):
    """Each item takes longer than lines are apart."""
    seconds = iter(range(0, 1000, int(SECONDS_BETWEEN_LINES) + 1))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))


def test_a_line_says_what_is_counted(clock, capsys):
    assert list(progress("abc", "training", 3, "batches")) == ["a", "b", "c"]
    lines = [f"training: {done} of 3 batches, {6 * done:.1f} s" for done in (1, 2, 3)]
    assert capsys.readouterr().out.splitlines() == lines


def test_quick_work_says_nothing(capsys):
    list(progress(range(1000), "samples", 1000, "images"))
    assert capsys.readouterr().out == ""


def test_work_that_grows_is_never_more_than_all(clock, capsys):
    left = [2, 2, 1, 2, 1, 0]  # the first before anything is done
    list(progress(range(5), "race", lambda: left.pop(0), "rounds"))
    counts = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert counts == [f"race: {count} rounds" for count in ("1 of 3", "2 of 3", "3 of 5", "4 of 5", "5 of 5")]


def report(phases):
    """Report two steps, of which the first one is a phase of four steps."""
    phases.start("all", None, 2)
    phases.start("part", "all", 4)
    phases.step("part", 1)
    phases.finish("part")
    phases.step("all", 0)
    phases.step("never begun", 0)
    phases.finish("all")
    phases.close()


def test_a_phase_is_as_far_as_its_steps_and_the_phases_in_it(clock, capsys):
    report(Phases("building"))
    assert capsys.readouterr().out.splitlines() == [
        "building, all: 0 %, 6.0 s",
        "building, part: 0 %, 12.0 s",
        "building, part: 25 %, 18.0 s",
        "building, all: 50 %, 24.0 s",
        "building, all: 50 %, 30.0 s",
    ]


def test_a_bar_names_the_phase(monkeypatch, capsys):
    monkeypatch.setattr(module, "is_drawn", lambda: True)
    report(Phases("building"))
    shown = capsys.readouterr()
    assert shown.out == ""
    for part in ("building, part:  25%", "building, all:  50%"):
        assert part in shown.err


@pytest.mark.parametrize(("columns", "is_drawn"), [(80, True), (0, False)])
def test_a_terminal_without_a_size_gets_lines(monkeypatch, columns, is_drawn):
    terminal = SimpleNamespace(isatty=lambda: True, fileno=lambda: 2)
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=terminal))
    monkeypatch.setattr(module, "os", SimpleNamespace(get_terminal_size=lambda _: os.terminal_size((columns, 24))))
    assert module.is_drawn() == is_drawn


def test_quick_phases_print_nothing(capsys):
    report(Phases("building"))
    assert capsys.readouterr() == ("", "")


def test_a_bar_grows_with_its_work(monkeypatch, capsys):
    left = [2, 1, 1, 0]  # asked once before the first
    monkeypatch.setattr(module, "is_drawn", lambda: True)
    assert list(progress(range(3), "race", lambda: left.pop(0), "rounds")) == [0, 1, 2]
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "race:   0%" in shown.err
    assert "0/2 [" in shown.err
    assert left == []

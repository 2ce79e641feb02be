"""The history and the summary of made-up nights."""

import time
from datetime import timedelta

import pytest

from enginewright.measure.history import read_history
from enginewright.measure.records import Outcome
from enginewright.report.page.picture import write_figures
from enginewright.report.page.pictures import draw_trends, trend_rows


def test_the_history_has_a_line_for_each_night_and_precision(nights, both):
    nights.night(both())
    nights.night(*[both(int8=(11.0, 3.7))] * 2)
    (history,) = read_history(nights.root)
    lines = history.nights()
    assert [(night.revision, night.precision) for night in lines] == [
        ("revision0", "fp32"), ("revision0", "int8"), ("revision1", "fp32"), ("revision1", "int8"),
    ]  # fmt: skip
    assert [night.outcome for night in lines] == [None, None, Outcome.NO_CHANGE, Outcome.REGRESSION]
    assert [night.good for night in lines] == [True, True, False, False]
    assert [night.kept for night in lines] == [True, True, False, False]
    assert lines[1].speed() == pytest.approx((13.0 * 4.4) ** 0.5)


def test_the_summary_has_the_good_run_the_changes_and_the_nights(nights, both):
    nights.night(both())
    summary = nights.summary(nights.night(*[both(int8=(11.0, 3.7))] * 2))
    assert summary.startswith("# Red: a confirmed regression (int8: ")
    assert "The last good night: 2026-11-21." in summary
    assert (
        "The good run is of 2026-11-21 02:17; `git log --oneline revision0..revision1` tells what changed since."
        in summary
    )
    assert "| int8        | times eager, batch 8 | 4.4        | 3.7          | -15.9%" in summary
    assert "| 2026-11-21 02:17 | revision0  | 1.73 (first) | 7.56 (first)      | good, kept |" in summary
    assert "| 2026-11-22 02:17 | revision1  | 1.73         | 6.38 (regression) | not good   |" in summary
    assert "\n## Which precision to ship\n" in summary


def test_the_summary_links_the_run_on_github(nights, both, monkeypatch):
    judgement = nights.night(both())
    assert "#artifacts" not in nights.summary(judgement)
    for name, value in {"SERVER_URL": "https://github.com", "REPOSITORY": "me/it", "RUN_ID": "42"}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    assert "(https://github.com/me/it/actions/runs/42#artifacts)" in nights.summary(judgement)


def test_the_trend_has_the_nights_of_every_machine(nights, both, tmp_path, setting):
    other = setting.model_copy(update={"machine": setting.machine.model_copy(update={"device_name": "NVIDIA H200"})})
    nights.night(both())
    nights.night(both(), setting=other)
    nights.night(*[both(int8=(11.0, 3.7))] * 2)
    rows = trend_rows(read_history(tmp_path))
    assert len(rows) == 6
    assert list(rows[rows["precision"] == "int8"]["verdict"]) == ["first", "regression", "first"]
    assert set(rows["setting"]) == {setting.title, other.title}
    write_figures(tmp_path / "trend.svg", draw_trends(rows))
    drawn = (tmp_path / "trend.svg").read_text()
    assert drawn.count("Higher is faster") == drawn.count("Lower is closer to PyTorch") == 2
    assert all(f">{each.title}</text>" in drawn for each in (setting, other))


def test_three_years_of_nights_are_read_and_drawn_in_seconds(nights, both, tmp_path):
    nights.night(both())
    (history,) = read_history(tmp_path)
    _, int8 = history.nights()
    history.append(int8.model_copy(update={"date": int8.date + timedelta(days=day)}) for day in range(1, 1100))
    started = time.process_time()
    drawn = draw_trends(trend_rows(read_history(tmp_path)))
    write_figures(tmp_path / "trend.svg", drawn)
    assert time.process_time() - started < 15
    assert (tmp_path / "trend.svg").stat().st_size < 100_000, "the page shows the last nights alone"


def test_without_nights_there_is_no_trend(tmp_path):
    assert read_history(tmp_path) == []
    assert draw_trends(trend_rows([])) == {}

"""`enginery compare`."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from enginery.cli.completion import RUN, add_path
from enginery.core.text import confidence

if TYPE_CHECKING:
    from enginery.regression.comparison import Change
    from enginery.regression.speed_change import SpeedChanges

REGRESSION, NOT_COMPARABLE = 3, 4
SUMMARY = "whether a later run is slower or less accurate than an earlier one"
EXAMPLES = """\
examples:
  enginery compare HEAD~1 reports
  enginery compare main reports --json | jq '.[] | [.figure, .outcome]'
  enginery compare HEAD~1 reports --race

A share above 0 is better; within what chance explains, it is no change.
Ratios to PyTorch tell a change of a tenth; on a machine that is shared they
may not be comparable. With --race the engines of both runs are raced side by
side, here and now, half a minute for each precision, which tells 3 %; an
earlier commit's come out of DVC's cache.
Exits 3 on a regression, 4 if there is none but something is not comparable, 1
on an error."""


def add_arguments(command: ArgumentParser) -> None:
    for name in ("before", "after"):
        add_path(command, name, RUN, type=str, help="a reports folder, a measurements.json, or a git revision")
    command.add_argument(
        "--confidence", type=confidence, default=0.99, metavar="C", help="of the verdict, 0.99 if not given"
    )
    command.add_argument(
        "--race", action="store_true", help="tell speed by racing the engines of both runs here and now"
    )
    command.add_argument("--json", action="store_true", help="as JSON")


def run(chosen: Namespace) -> int:
    from enginery.regression.comparison import Outcome, compare_runs, conclusion, describe, pairs_of
    from enginery.regression.measurements import read_measurements

    before, after = read_measurements(chosen.before), read_measurements(chosen.after)
    raced = (
        _race(chosen.before, chosen.after, [new.precision for _, new in pairs_of(before, after)]) if chosen.race else {}
    )
    changes = compare_runs(before, after, chosen.confidence, raced)
    print(
        json.dumps([change.model_dump() for change in changes], indent=2)
        if chosen.json
        else describe(changes, chosen.confidence)
    )
    if not (chosen.race or chosen.json):
        print(f"\n{_left_to_chance(changes)}To tell 3 %, race both runs' engines: --race")
    return {Outcome.REGRESSION: REGRESSION, Outcome.NOT_COMPARABLE: NOT_COMPARABLE}.get(conclusion(changes), 0)


def _left_to_chance(changes: "Sequence[Change]") -> str:
    from enginery.regression.comparison import TOGETHER

    slacks = [change.slack for change in changes if change.figure == TOGETHER and change.slack is not None]
    return f"Ratios leave changes of up to {max(slacks):.0%} to chance here.\n" if slacks else ""


def _race(before: str, after: str, precisions: Collection[str]) -> "Mapping[str, SpeedChanges]":
    from enginery.core.params.all import Params
    from enginery.regression.earlier_engines import engines_of
    from enginery.regression.engine_race import race_runs

    with engines_of(before) as old, engines_of(after) as new:
        return race_runs(old, new, precisions, Params.read())

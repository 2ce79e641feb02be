"""`enginewright compare`: tell whether a later run is slower or less accurate than an earlier one."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from enginewright.cli.arguments import RUN, add_path
from enginewright.core.params.all import Params
from enginewright.core.text import confidence
from enginewright.measure.comparison import (
    TOGETHER,
    SpeedChanges,
    common_precisions,
    compare_runs,
    conclusion,
    describe,
)
from enginewright.measure.history import engines_of, read_measurements
from enginewright.measure.race import race_runs
from enginewright.measure.records import Outcome

STATUSES, UNSURE = {Outcome.REGRESSION: 3, Outcome.NOT_COMPARABLE: 4}, 6
EXAMPLES = """\
examples:
  enginewright compare HEAD~1 reports
  enginewright compare main reports --json | jq '.[] | [.figure, .outcome]'
  enginewright compare HEAD~1 reports --race

A share above 0 is better. A change that chance can explain is no change.
Ratios to PyTorch show a change of a tenth; on a shared machine they may not
be comparable. --race races the engines of both runs side by side, here and
now, half a minute for each precision, which shows a change of 3 %. The engines
of an earlier commit come from DVC's cache.
Exits 3 on a regression; 6 if the later run has too few samples to be sure of a
threshold, where validation.must_be_sure asks for it; 4 if something is not
comparable; 1 on an error."""


def add_arguments(command: ArgumentParser) -> None:
    runs = "a reports folder, a measurements.json, or a git revision"
    for name in ("before", "after"):
        add_path(command, name, RUN, type=str, help=runs)
    sure = "confidence of the verdict, 0.99 if not given"
    command.add_argument("--confidence", type=confidence, default=0.99, metavar="C", help=sure)
    race = "compare speed by racing the engines of both runs here and now"
    command.add_argument("--race", action="store_true", help=race)
    command.add_argument("--json", action="store_true", help="print JSON")


def run(chosen: Namespace) -> int:
    before, after = read_measurements(chosen.before), read_measurements(chosen.after)
    precisions = [new.precision for _, new in common_precisions(before, after)]
    raced: Mapping[str, SpeedChanges] = {}
    if chosen.race:
        with engines_of(chosen.before) as old, engines_of(chosen.after) as new:
            raced = race_runs(old, new, precisions, Params.read())
    changes = compare_runs(before, after, chosen.confidence, raced)
    rows = [change.model_dump() for change in changes]
    print(json.dumps(rows, indent=2) if chosen.json else describe(changes, chosen.confidence))
    if not (chosen.race or chosen.json):
        slacks = [change.slack for change in changes if change.figure == TOGETHER and change.slack is not None]
        chance = f"Ratios leave changes of up to {max(slacks):.0%} to chance here.\n" if slacks else ""
        print(f"\n{chance}To tell 3 %, race both runs' engines: --race")
    found = conclusion(changes)
    if found != Outcome.REGRESSION and any(entry.validation.not_enough_samples for entry in after.precisions):
        return UNSURE
    return STATUSES.get(found, 0)

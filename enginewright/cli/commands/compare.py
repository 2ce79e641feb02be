"""`enginewright compare`: tell whether a later run is slower or less accurate than an earlier one."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from enginewright.cli.arguments import FILE, RUN, add_path
from enginewright.cli.two_versions import PAGE, judge_upgrade
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.core.text import confidence
from enginewright.measure import comparison
from enginewright.measure.history import engines_of, read_measurements
from enginewright.measure.race import race_runs
from enginewright.measure.records import Outcome

STATUSES, UNSURE = {Outcome.REGRESSION: 3, Outcome.NOT_COMPARABLE: 4}, 6
EXAMPLES = """\
examples:
  enginewright compare HEAD~1 reports
  enginewright compare main reports --json | jq '.[] | [.figure, .outcome]'
  enginewright compare --from ../old/bin/python --to ../new/bin/python

A share above 0 is better. A change that chance can explain is no change.
Ratios to PyTorch show a change of a tenth; --race shows one of 3 %: it races
the engines of both runs, half a minute for each precision. --from and --to
compare two versions of the runtime.
Exits 3 on a regression, 6 if samples are too few to be sure of a threshold, 4
if something is not comparable."""


def add_arguments(command: ArgumentParser) -> None:
    runs = "a reports folder, a measurements.json, or a git revision"
    for name in ("before", "after"):
        add_path(command, name, RUN, type=str, nargs="?", help=runs)
    python = "the Python of an environment with the {} version of the runtime, to judge an upgrade on this machine"
    add_path(command, "--from", FILE, dest="old", metavar="PYTHON", help=python.format("old"))
    add_path(command, "--to", FILE, dest="new", metavar="PYTHON", help=python.format("new"))
    sure = "confidence of the verdict, 0.99 if not given"
    command.add_argument("--confidence", type=confidence, default=0.99, metavar="C", help=sure)
    race = "compare speed by racing the engines of both runs here and now"
    command.add_argument("--race", action="store_true", help=race)
    command.add_argument("--json", action="store_true", help="print JSON")


def run(chosen: Namespace) -> int:
    runs, environments = (chosen.before, chosen.after), (chosen.old, chosen.new)
    if all(environments) and not any(runs):
        judged = judge_upgrade(str(chosen.old), str(chosen.new), Params.read(), chosen.confidence, print)
        print(f"{PAGE} has it all")
        return 0 if all(each.verdict.startswith("safe") for each in judged) else STATUSES[Outcome.REGRESSION]
    if any(environments) or not all(runs):
        raise EnginewrightError("give two runs, or --from and --to with the Pythons of two environments")
    before, after = read_measurements(chosen.before), read_measurements(chosen.after)
    precisions = [new.precision for _, new in comparison.common_precisions(before, after)]
    raced: Mapping[str, comparison.SpeedChanges] = {}
    if chosen.race:
        with engines_of(chosen.before) as old, engines_of(chosen.after) as new:
            raced = race_runs(old, new, precisions, Params.read())
    changes = comparison.compare_runs(before, after, chosen.confidence, raced)
    rows = [change.model_dump() for change in changes]
    print(json.dumps(rows, indent=2) if chosen.json else comparison.describe(changes, chosen.confidence))
    if not (chosen.race or chosen.json):
        slacks = [one.slack for one in changes if one.figure == comparison.TOGETHER and one.slack is not None]
        chance = f"Ratios leave changes of up to {max(slacks):.0%} to chance here.\n" if slacks else ""
        print(f"\n{chance}To tell 3 %, race both runs' engines: --race")
    found = comparison.conclusion(changes)
    if found != Outcome.REGRESSION and any(entry.validation.not_enough_samples for entry in after.precisions):
        return UNSURE
    return STATUSES.get(found, 0)

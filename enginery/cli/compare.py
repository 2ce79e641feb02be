"""`enginery compare`."""

import json
import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from enginery.cli.paths import FILE, add_path

REGRESSION, NOT_COMPARABLE = 3, 4
SUMMARY = "whether a later run is slower or less accurate than an earlier one"
EXAMPLES = """\
examples:
  enginery compare HEAD~1 reports
  enginery compare main reports --json | jq '.[] | [.figure, .outcome]'

A share above 0 is better; within what chance explains, it is no change.
Exits 3 on a regression, 4 if there is none but something is not comparable, 1
on an error."""


def add_arguments(command: ArgumentParser) -> None:
    for name in ("before", "after"):
        add_path(command, name, FILE, type=str, help="a reports folder, a measurements.json, or a git revision")
    command.add_argument(
        "--confidence", type=confidence, default=0.99, metavar="C", help="of the verdict, 0.99 if not given"
    )
    command.add_argument("--json", action="store_true", help="as JSON")


def run(chosen: Namespace) -> int:
    from enginery.comparison import Outcome, compare_runs, conclusion, describe, read_measurements

    before, after = read_measurements(chosen.before), read_measurements(chosen.after)
    changes = compare_runs(before, after, chosen.confidence)
    print(
        json.dumps([change.model_dump() for change in changes], indent=2)
        if chosen.json
        else describe(changes, chosen.confidence)
    )
    return {Outcome.REGRESSION: REGRESSION, Outcome.NOT_COMPARABLE: NOT_COMPARABLE}.get(conclusion(changes), 0)


def confidence(given: str) -> float:
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not 0.5 < value < 1:
        raise ArgumentTypeError(f"{given} is no number between 0.5 and 1")
    return value

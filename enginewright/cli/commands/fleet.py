"""`enginewright fleet`: build, validate and race on all machines of fleet.yaml, and make one page."""

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from enginewright.cli.arguments import FILE, add_path, number_above_zero
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import REPORTS, write_text
from enginewright.core.params.all import Params
from enginewright.model.user_code import users_code
from enginewright.targets.answer import Answer, choose, described, offers_of
from enginewright.targets.file import Fleet

FAILED = 5
PAGE = REPORTS / "fleet.html"
EXAMPLES = """\
examples:
  enginewright fleet                          ask all targets
  enginewright fleet --target h200            ask one, and show all
  enginewright fleet --known --latency 2ms    ask none: which is cheapest?
  enginewright fleet --known --budget 0.5     which is quickest for that?

Engines and reports come to artifacts/fleet, answers to history/fleet: commit
them. Budgets are for a million images, in the currency of price_per_hour.
Exits 5 if a target failed, 1 if nothing keeps the limits."""


def add_arguments(command: ArgumentParser) -> None:
    add_path(command, "--file", FILE, default=Path("fleet.yaml"), metavar="FILE", help="fleet.yaml if not given")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--target", action="append", default=[], metavar="NAME", help="ask only this one, or several")
    which.add_argument("--known", action="store_true", help="ask none, and take the answers that there are")
    limit = "choose the cheapest whose answers take no longer, such as 2ms"
    command.add_argument("--latency", type=milliseconds, metavar="MS", help=limit)
    quickest = "choose the quickest that costs no more"
    command.add_argument("--budget", type=number_above_zero, metavar="COST", help=quickest)
    add_path(command, "--page", FILE, default=PAGE, metavar="FILE", help=f"where the page goes, {PAGE} if not given")
    command.add_argument("--json", action="store_true", help="print the answers as JSON")


def milliseconds(given: str) -> float:
    return number_above_zero(given.removesuffix("ms").strip())


def run(chosen: Namespace) -> int:
    fleet = Fleet.read(chosen.file)
    asked = fleet.only(tuple(chosen.target))
    from enginewright.targets.ask import ask_fleet, known_answers
    from enginewright.targets.page import as_text, render_fleet  # these take a second, and a mistake is told at once

    failed = []
    if not chosen.known:
        params = Params.read()
        failed = ask_fleet(asked, params, users_code(params))
    models = known_answers(fleet)
    if not models:
        if not chosen.known or chosen.latency or chosen.budget:
            raise EnginewrightError("no target has answered yet: `enginewright fleet` asks them")
        print("no target has answered yet")
        return 0
    write_text(chosen.page, render_fleet(fleet, models))
    if chosen.json:
        rows = {title: [answer.model_dump(mode="json") for answer in answers] for title, answers in models.items()}
        print(json.dumps(rows, indent=2))
    else:
        print("\n\n".join(as_text(title, fleet, answers) for title, answers in models.items()))
        print(f"\nMore in {chosen.page}")
    chose = not (chosen.latency or chosen.budget) or say_what_to_take(fleet, models, chosen)
    return FAILED if failed else int(not chose)


def say_what_to_take(fleet: Fleet, models: dict[str, list[Answer]], chosen: Namespace) -> bool:
    """Name the choice for each model. Return False if there is one that nothing keeps the limits for."""
    chose = True
    for title, answers in models.items():
        try:
            found = choose(offers_of(answers, fleet), chosen.latency, chosen.budget)
        except EnginewrightError as error:
            print(f"{title}: {error}", file=sys.stderr)
            chose = False
        else:
            print(f"{title}: take {described(found)}", file=sys.stderr if chosen.json else sys.stdout)
    return chose

"""`enginewright doctor`."""

import sys
from argparse import ArgumentParser, Namespace

SUMMARY = "check what this machine can run, what is missing, and how to install it"
EXAMPLES = """\
examples:
  enginewright doctor
  enginewright doctor --json | jq -r '.findings[] | select(.remedy) | .remedy'

Exits 0 if `dvc repro` can run here, else 1."""


def add_arguments(command: ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object: can_run, findings")


def run(chosen: Namespace) -> int:
    from enginewright.cli.doctor.environment import as_json, as_text, can_run, examine

    checks = examine()
    print(as_json(checks) if chosen.json else as_text(checks, sys.stdout))
    return 0 if can_run(checks) else 1

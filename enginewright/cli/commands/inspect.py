"""`enginewright inspect`."""

from argparse import ArgumentParser, Namespace

from enginewright.cli.arguments import add_engine
from enginewright.engine.description import describe_engine, engine_as_json

EXAMPLES = """\
examples:
  enginewright inspect artifacts/engines/int8
  enginewright inspect artifacts/engines/int8 --json | jq .executed

Needs neither a GPU nor the engine's runtime. Exits 1 if the engine is damaged."""


def add_arguments(command: ArgumentParser) -> None:
    add_engine(command)
    command.add_argument("--json", action="store_true", help="print engine.json and what follows from it")


def run(chosen: Namespace) -> int:
    print(engine_as_json(chosen.engine) if chosen.json else describe_engine(chosen.engine))
    return 0

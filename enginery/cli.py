"""The command `enginery`: what one asks of the pipeline's products. The pipeline itself is run by `dvc repro`."""

import argparse
import json
import sys
from pathlib import Path

from enginery.comparison import Outcome, compare_runs, conclusion, describe, read_measurements
from enginery.core.errors import EngineryError
from enginery.inspection import describe_engine

STATUS = {Outcome.REGRESSION: 3, Outcome.NOT_COMPARABLE: 4}


def main() -> None:
    parser = argparse.ArgumentParser(prog="enginery", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    inspect = commands.add_parser("inspect", help="what an engine is: tensors, profile, layers, where it runs")
    inspect.add_argument("engine", type=Path, help="an engine's folder, such as artifacts/engines/int8")
    inspect.set_defaults(run=lambda chosen: print(describe_engine(chosen.engine)))
    compare = commands.add_parser(
        "compare",
        help="whether a later run is slower or less accurate than an earlier one",
        epilog="Exits 3 on a regression, 4 if there is none but something is not comparable, 1 on an error.",
    )
    for name in ("before", "after"):
        compare.add_argument(name, help="a reports folder, a measurements.json, or a git revision")
    compare.add_argument("--confidence", type=_confidence, default=0.99, help="of the verdict, 0.99 if not given")
    compare.add_argument("--json", action="store_true", help="as JSON")
    compare.set_defaults(run=_compare)
    chosen = parser.parse_args()
    try:
        sys.exit(chosen.run(chosen))
    except EngineryError as error:
        sys.exit(f"enginery: {error}")
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        sys.exit(0)
    except OSError as error:
        sys.exit(f"enginery: {error.filename or 'the operating system'}: {error.strerror or error}")


def _compare(chosen: argparse.Namespace) -> int:
    before, after = read_measurements(chosen.before), read_measurements(chosen.after)
    changes = compare_runs(before, after, chosen.confidence)
    if chosen.json:
        print(json.dumps([change.model_dump() for change in changes], indent=2))
    else:
        print(describe(changes, chosen.confidence))
    return STATUS.get(conclusion(changes), 0)


def _confidence(given: str) -> float:
    value = float(given)
    if not 0.5 < value < 1:
        raise argparse.ArgumentTypeError("must lie between 0.5 and 1")
    return value

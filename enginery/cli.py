"""The command `enginery`: what one asks of the pipeline's products. The pipeline itself is run by `dvc repro`."""

import argparse
import sys
from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.inspection import describe_engine


def main() -> None:
    parser = argparse.ArgumentParser(prog="enginery", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    inspect = commands.add_parser("inspect", help="what an engine is: tensors, profile, layers, where it runs")
    inspect.add_argument("engine", type=Path, help="an engine's folder, such as artifacts/engines/int8")
    inspect.set_defaults(run=lambda chosen: print(describe_engine(chosen.engine)))
    chosen = parser.parse_args()
    try:
        chosen.run(chosen)
    except EngineryError as error:
        sys.exit(f"enginery: {error}")
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        sys.exit(0)
    except OSError as error:
        sys.exit(f"enginery: {error.filename or 'the operating system'}: {error.strerror or error}")

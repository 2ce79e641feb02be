"""Run a stage from the command line."""

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from enginewright.core.errors import EnginewrightError, sentence_of
from enginewright.core.params.all import Params
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.process import end_after


def run_stage(stage: Callable[..., None]) -> None:
    """Call a stage with params.yaml, if it takes `params`, and with its other arguments from the options of the same
    names: paths, or a text such as a precision.

    An error that a user can cause becomes one line and exit code 1: DVC stops there and keeps the other results.
    """
    name, arguments = stage.__name__, dict(inspect.signature(stage).parameters)
    takes_params = arguments.pop("params", None)
    parser = argparse.ArgumentParser(prog=f"python3 -m stages {name}", description=inspect.getdoc(stage))
    for each, argument in arguments.items():
        kind = Path if argument.annotation is Path else str
        parser.add_argument(f"--{each.replace('_', '-')}", dest=each, type=kind, required=True)
    given = vars(parser.parse_args())
    try:
        params = _params_for(given.get("precision"))
        end_after(params.timeouts.of(name))
        stage(**given, **({"params": params} if takes_params else {}))
    except KeyboardInterrupt:
        sys.exit(f"{name}: interrupted; nothing half-written was kept. Run `dvc repro` again to go on.")
    except Exception as error:
        if sentence := sentence_of(error):
            sys.exit(f"{name}: {sentence}")
        raise


def _params_for(precision: str | None) -> Params:
    params = Params.read()
    if precision not in (None, *params.precisions):
        listed = ", ".join(params.precisions)
        raise EnginewrightError(f"{PARAMS_FILE} has no section precisions.{precision}; it has {listed}")
    return params

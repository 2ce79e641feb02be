"""Run a stage from the command line."""

import argparse
import inspect
import sys
from collections.abc import Callable

from enginewright.core.errors import sentence_of
from enginewright.core.params.measuring import TimeoutParams
from enginewright.core.process import end_after


def run_stage(stage: Callable[..., None]) -> None:
    """Call a stage with its arguments from the options of the same names, in the types of its annotations.

    An error that a user can cause becomes one line and exit code 1: DVC stops there and keeps the other results.
    """
    parser = argparse.ArgumentParser(prog=f"python3 -m stages {stage.__name__}", description=inspect.getdoc(stage))
    for name, parameter in inspect.signature(stage).parameters.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, type=parameter.annotation, required=True)
    arguments = vars(parser.parse_args())
    try:
        end_after(TimeoutParams.of_stage(stage.__name__))
        stage(**arguments)
    except KeyboardInterrupt:
        sys.exit(f"{stage.__name__}: interrupted; nothing half-written was kept. Run `dvc repro` again to go on.")
    except Exception as error:
        if sentence := sentence_of(error):
            sys.exit(f"{stage.__name__}: {sentence}")
        raise

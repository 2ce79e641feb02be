"""Check, inspect, use, compare and bundle what `dvc repro` makes."""

import importlib.util
import io
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Collection
from typing import NoReturn

from enginewright import __version__
from enginewright.cli.arguments import FUNCTIONS, painted
from enginewright.core.errors import sentence_of
from enginewright.core.process import escape_what_is_printed, outlive_crashes, stay_quiet_when_interrupted
from enginewright.core.text import suggestion

COMPLETION = "--print-completion"
INTERRUPTED = 130
EXTRAS = {"PIL": "images", "tokenizers": "text"}  # which brings a package, where the whole pipeline is not needed
EXIT_CODES = """\
exit codes:
  0  fine
  1  an error, one sentence on stderr; doctor: `dvc repro` cannot run here
  2  the command line is not understood
  3  compare: a regression
  4  compare: no regression, but something is not comparable
  5  infer, fleet: an image or a target failed, the others are answered
  6  compare: too few samples to be sure of a threshold
  130  interrupted, by Ctrl-C
"""
# Each is a module of its name in commands/, or one of ELSEWHERE, with EXAMPLES, add_arguments and run. It is imported
# when it is asked for.
COMMANDS = {
    "new": "lay out the pipeline in your own repository",
    "doctor": "check what this machine can run, what is missing, and how to install it",
    "inspect": "describe an engine: tensors, profile, layers, where it runs",
    "infer": "answer for images, texts or arrays: classes, boxes, areas, numbers",
    "compare": "check whether a later run is slower or less accurate than an earlier one",
    "bundle": "make a folder to deploy: engine, ONNX, examples, Triton model repository",
    "cure": "find what cures an engine that differs from its own graph, and what that costs",
    "fleet": "build, validate and race on all machines of fleet.yaml, and make one page",
    "keep": "search no more: write what was found into params.yaml",
    "reduce": "find the few nodes that a compiler gets wrong, to report them",
    "refit": "put other weights into an engine, without building it again",
    "upgrade": "bring a project to the version that is installed",
}
ELSEWHERE = {"reduce": "tools.reduction.command"}


def main() -> None:
    """Run one command. Any error that a user can cause ends in one sentence on stderr."""
    stay_quiet_when_interrupted()
    prepare_streams()
    given = sys.argv[1:]
    try:
        parser = build_parser(COMMANDS if COMPLETION in given else given[:1])
        if given and not given[0].startswith("-") and given[0] not in COMMANDS:
            parser.error(f"'{given[0]}' is no command{suggestion(given[0], COMMANDS)}")
        chosen = parser.parse_args(given or ["--help"])
        outlive_crashes("enginewright")
        status = chosen.run(chosen)
        sys.stdout.flush()  # now, so that a closed pipe is noticed here
        sys.exit(status)
    except ModuleNotFoundError as error:  # a light installation has what runs engines, and not what makes them
        if (error.name or "enginewright").startswith("enginewright"):
            raise
        from enginewright.core.installing import how_to_install

        extra = EXTRAS.get(error.name or "", "pipeline")
        fail(f"{given[0]} needs the package {error.name}: {how_to_install(extra)}")
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        fail("interrupted; nothing half-written was kept", INTERRUPTED)
    except Exception as error:
        if sentence := sentence_of(error):
            fail(sentence)
        raise


def prepare_streams() -> None:
    """Prepare stdout and stderr: both may be closed, as in `>&-`, and a locale may not be able to write some names."""
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    escape_what_is_printed()


def fail(sentence: str, status: int = 1) -> NoReturn:
    print(f"{painted('enginewright:', 'red', sys.stderr)} {sentence}", file=sys.stderr)
    sys.exit(status)


def build_parser(whole: Collection[str] = COMMANDS.keys()) -> ArgumentParser:
    """Return a parser that knows all commands by name, and the arguments of these."""
    form = RawDescriptionHelpFormatter
    parser = ArgumentParser(prog="enginewright", description=__doc__, epilog=EXIT_CODES, formatter_class=form)
    version = f"%(prog)s {__version__}"
    parser.add_argument("--version", action="version", version=version, help="print the version and exit")
    if importlib.util.find_spec("shtab"):
        import shtab

        about = "print the script that completes commands in your shell"
        shtab.add_argument_to(parser, COMPLETION, help=about, preamble=FUNCTIONS)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        about = f"{summary[0].upper()}{summary[1:]}."
        its_parser = commands.add_parser(name, help=summary, description=about, formatter_class=form)
        if name in whole:
            command = importlib.import_module(ELSEWHERE.get(name, f"enginewright.cli.commands.{name}"))
            its_parser.epilog = command.EXAMPLES
            command.add_arguments(its_parser)
            its_parser.set_defaults(run=command.run)
    return parser

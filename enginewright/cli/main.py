"""Check, inspect, use, compare and bundle what `dvc repro` makes."""

import importlib.util
import io
import os
import sys
from argparse import Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from typing import Any, NoReturn, Protocol

from enginewright import __version__
from enginewright.cli.commands import bundle, compare, doctor, fleet, infer, inspect, keep, new, reduce, refit, upgrade
from enginewright.cli.completion import FUNCTIONS
from enginewright.cli.terminal import painted
from enginewright.core.errors import sentence_of
from enginewright.core.process import outlive_crashes, stay_quiet_when_interrupted
from enginewright.core.streams import escape_what_is_printed
from enginewright.core.text import suggestion

INTERRUPTED = 130
EXTRAS = {"PIL": "images", "tokenizers": "text"}  # which brings a package, where the whole pipeline is not needed
FIRST_STEPS = """\
in the usual order:
  enginewright new                                   lay it out in your repository
  enginewright doctor                                can this machine run it?
  dvc repro                                      run it
  enginewright inspect artifacts/engines/int8        what was built
  enginewright infer artifacts/engines/int8 cat.jpg  what it sees in a picture
  enginewright compare HEAD~1 reports                is it worse than before?
  enginewright bundle int8                           a folder to deploy
  enginewright fleet                                 the same on other machines
  enginewright keep int8                             search no more
  enginewright reduce int8                           what its compiler gets wrong
  enginewright refit ENGINE ONNX --out FOLDER        other weights for TensorRT
  enginewright upgrade                               follow a newer version

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


class Command(Protocol):
    """A command, in the module of its name. It imports packages only when it runs: doctor must start without them."""

    SUMMARY: str
    EXAMPLES: str

    def add_arguments(self, command: ArgumentParser) -> None: ...

    def run(self, chosen: Namespace) -> int:
        """Run the command, and return the exit code."""
        ...


COMMANDS: dict[str, Command] = {
    "new": new,
    "doctor": doctor,
    "inspect": inspect,
    "infer": infer,
    "compare": compare,
    "bundle": bundle,
    "fleet": fleet,
    "keep": keep,
    "reduce": reduce,
    "refit": refit,
    "upgrade": upgrade,
}


def main() -> None:
    """Run one command. Any error that a user can cause ends in one sentence on stderr."""
    stay_quiet_when_interrupted()
    prepare_streams()
    parser, given = build_parser(), sys.argv[1:]
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        parser.error(f"'{given[0]}' is no command{suggestion(given[0], COMMANDS)}")
    try:
        chosen = parser.parse_args(given or ["--help"])
        outlive_crashes("enginewright")
        status = chosen.run(chosen)
        sys.stdout.flush()  # now, so that a closed pipe is noticed here
        sys.exit(status)
    except ModuleNotFoundError as error:  # a light installation has what runs engines, and not what makes them
        if (error.name or "enginewright").startswith("enginewright"):
            raise
        extra = EXTRAS.get(error.name or "", "pipeline")
        fail(f"{given[0]} needs the package {error.name}: pip install 'enginewright[{extra}]'")
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


def build_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="enginewright", description=__doc__, epilog=FIRST_STEPS, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    if importlib.util.find_spec("shtab"):
        import shtab

        about = "print the script that completes commands in your shell"
        shtab.add_argument_to(parser, "--print-completion", help=about, preamble=FUNCTIONS)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        its_parser = commands.add_parser(
            name,
            help=command.SUMMARY,
            description=f"{command.SUMMARY[0].upper()}{command.SUMMARY[1:]}.",
            epilog=command.EXAMPLES,
            formatter_class=RawDescriptionHelpFormatter,
        )
        command.add_arguments(its_parser)
        its_parser.set_defaults(run=command.run)
    return parser


class _Version(Action):
    def __call__(self, parser: ArgumentParser, *_: Any) -> NoReturn:
        print(f"{parser.prog} {__version__}")
        sys.exit(0)

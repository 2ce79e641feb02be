"""What one asks of the pipeline's products; `dvc repro` runs the pipeline."""

import argparse
import importlib.util
import json
import math
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from enginery.core.errors import EngineryError
from enginery.core.suggestions import suggestion
from enginery.core.terminal import painted

REGRESSION, NOT_COMPARABLE, UNREADABLE, INTERRUPTED = 3, 4, 5, 130
FIRST_STEPS = """\
in the order one meets them:
  enginery doctor                                can this machine run it?
  dvc repro                                      run it
  enginery inspect artifacts/engines/int8        what was built
  enginery infer artifacts/engines/int8 cat.jpg  what it says of a picture
  enginery compare HEAD~1 reports                is it worse than before?
  enginery bundle int8                           a folder to deploy

exit codes:
  0  fine
  1  an error, one sentence on stderr; doctor: `dvc repro` cannot run here
  2  the command line is not understood
  3  compare: a regression
  4  compare: no regression, but something is not comparable
  5  infer: an image could not be read, the others are answered
"""
ENGINE = "an engine's folder, such as artifacts/engines/int8"
FOLDER = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}
FILE = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}


def main() -> None:
    """Run one command. Whatever a user can cause ends in one sentence on stderr, and nothing is lost."""
    parser, commands = build_parser()
    given = sys.argv[1:]
    if given and not given[0].startswith("-") and given[0] not in commands:
        parser.error(f"'{given[0]}' is no command{suggestion(given[0], commands)}")
    chosen = parser.parse_args(given or ["--help"])
    try:
        status = chosen.run(chosen)
        sys.stdout.flush()  # here, where a reader that has gone can still be told from an error
        sys.exit(status)
    except EngineryError as error:
        fail(str(error))
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        fail(f"{error.filename or 'the operating system'}: {error.strerror or error}")
    except KeyboardInterrupt:
        fail("interrupted; nothing half-written was kept", INTERRUPTED)


def fail(sentence: str, status: int = 1) -> NoReturn:
    print(f"{painted('enginery:', 'red', sys.stderr)} {sentence}", file=sys.stderr)
    sys.exit(status)


def build_parser() -> tuple[ArgumentParser, Sequence[str]]:
    """The parser, and the names of the commands."""
    parser = ArgumentParser(
        prog="enginery", description=__doc__, epilog=FIRST_STEPS, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if importlib.util.find_spec("shtab"):
        _add_completion(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    _add_doctor(commands)
    _add_inspect(commands)
    _add_infer(commands)
    _add_compare(commands)
    _add_bundle(commands)
    return parser, list(commands.choices)


def _add_completion(parser: ArgumentParser) -> None:
    import shtab

    shtab.add_argument_to(parser, "--print-completion", help="the script that completes commands in your shell")


def _command(
    commands: "argparse._SubParsersAction[ArgumentParser]",
    run: Callable[[Namespace], int],
    summary: str,
    examples: str,
) -> ArgumentParser:
    command = commands.add_parser(
        run.__name__.removeprefix("run_"),
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_doctor(commands: "argparse._SubParsersAction[ArgumentParser]") -> None:
    command = _command(
        commands,
        run_doctor,
        "what this machine can run, what is missing, and how to install it",
        """\
examples:
  enginery doctor
  enginery doctor --json | jq -r '.findings[] | select(.remedy) | .remedy'

Exits 0 if `dvc repro` can run here, else 1.""",
    )
    command.add_argument("--json", action="store_true", help="as one JSON object: can_run, findings")


def _add_inspect(commands: "argparse._SubParsersAction[ArgumentParser]") -> None:
    command = _command(
        commands,
        run_inspect,
        "what an engine is: tensors, profile, layers, where it runs",
        """\
examples:
  enginery inspect artifacts/engines/int8
  enginery inspect artifacts/engines/int8 --json | jq .executed

Needs neither a GPU nor the engine's runtime. Exits 1 if the engine is damaged.""",
    )
    command.add_argument("engine", type=Path, help=ENGINE).complete = FOLDER  # type: ignore[attr-defined]
    command.add_argument("--json", action="store_true", help="engine.json, and what follows from it")


def _add_infer(commands: "argparse._SubParsersAction[ArgumentParser]") -> None:
    command = _command(
        commands,
        run_infer,
        "what an engine says of images: the likeliest classes and their probabilities",
        """\
examples:
  enginery infer artifacts/engines/int8 cat.jpg dog.png
  enginery infer artifacts/engines/int8 photos --top 1   all images in a folder
  enginery infer artifacts/engines/int8 photos --json | jq -r '.top[0].class'

Images are prepared as those that the engine was validated on. With --json, a
line for each image, {"image": ..., "error": ...} or
{"image": ..., "top": [{"class": ..., "index": ..., "probability": ...}]}.
Exits 5 if an image could not be read, after answering for the others; 1 if the
engine cannot be used.""",
    )
    command.add_argument("engine", type=Path, help=ENGINE).complete = FOLDER  # type: ignore[attr-defined]
    images = command.add_argument(
        "images", type=Path, nargs="+", metavar="IMAGE", help="image files, and folders of them"
    )
    images.complete = FILE  # type: ignore[attr-defined]
    command.add_argument(
        "--top", type=_positive, default=3, metavar="K", help="how many classes to name, 3 if not given"
    )
    command.add_argument(
        "--batch", type=_positive, metavar="N", help="images at a time; the engine's largest if not given"
    )
    command.add_argument("--threads", type=_positive, metavar="N", help="CPU threads; one per core if not given")
    command.add_argument("--json", action="store_true", help="a line of JSON for each image")


def _add_compare(commands: "argparse._SubParsersAction[ArgumentParser]") -> None:
    command = _command(
        commands,
        run_compare,
        "whether a later run is slower or less accurate than an earlier one",
        """\
examples:
  enginery compare HEAD~1 reports
  enginery compare main reports --json | jq '.[] | [.figure, .outcome]'

A share above 0 is better; within what chance explains, it is no change.
Exits 3 on a regression, 4 if there is none but something is not comparable, 1
on an error.""",
    )
    for name in ("before", "after"):
        run = command.add_argument(name, help="a reports folder, a measurements.json, or a git revision")
        run.complete = FILE  # type: ignore[attr-defined]
    command.add_argument(
        "--confidence", type=_confidence, default=0.99, metavar="C", help="of the verdict, 0.99 if not given"
    )
    command.add_argument("--json", action="store_true", help="as JSON")


def _add_bundle(commands: "argparse._SubParsersAction[ArgumentParser]") -> None:
    command = _command(
        commands,
        run_bundle,
        "a folder to deploy: engine, ONNX, examples, and a Triton model repository",
        """\
examples:
  enginery bundle int8
  enginery bundle int8 --out /srv/models/digits

Only what passed the gate is bundled: exits 1, and says why, if the precision
broke a threshold, or if the engine is not the one that was validated.""",
    )
    command.add_argument("precision", help="one that `dvc repro` made, such as int8")
    out = command.add_argument("--out", type=Path, metavar="FOLDER", help="bundles/MODEL-PRECISION if not given")
    out.complete = FOLDER  # type: ignore[attr-defined]
    for name, what in (("artifacts", "what the pipeline made"), ("reports", "its verdict")):
        folder = command.add_argument(
            f"--{name}", type=Path, default=Path(name), metavar="FOLDER", help=f"where {what} is, {name} if not given"
        )
        folder.complete = FOLDER  # type: ignore[attr-defined]


# Each command imports what it needs when it is run: where packages are missing, doctor must still start.


def run_doctor(chosen: Namespace) -> int:
    from enginery.doctor import as_json, as_text, can_run, examine

    findings = examine()
    print(as_json(findings) if chosen.json else as_text(findings, sys.stdout))
    return 0 if can_run(findings) else 1


def run_inspect(chosen: Namespace) -> int:
    from enginery.inspection import describe_engine, engine_as_json

    print(engine_as_json(chosen.engine) if chosen.json else describe_engine(chosen.engine))
    return 0


def run_infer(chosen: Namespace) -> int:
    from enginery.infer import infer

    unread = infer(chosen.engine, chosen.images, chosen.top, chosen.batch, chosen.threads or 0, chosen.json)
    return UNREADABLE if unread else 0


def run_compare(chosen: Namespace) -> int:
    from enginery.comparison import Outcome, compare_runs, conclusion, describe, read_measurements

    before, after = read_measurements(chosen.before), read_measurements(chosen.after)
    changes = compare_runs(before, after, chosen.confidence)
    print(
        json.dumps([change.model_dump() for change in changes], indent=2)
        if chosen.json
        else describe(changes, chosen.confidence)
    )
    return {Outcome.REGRESSION: REGRESSION, Outcome.NOT_COMPARABLE: NOT_COMPARABLE}.get(conclusion(changes), 0)


def run_bundle(chosen: Namespace) -> int:
    from enginery.bundle.write import write_bundle

    print(write_bundle(chosen.precision, chosen.out, chosen.artifacts, chosen.reports))
    return 0


def _positive(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"{given} is no whole number from 1 on")
    return int(given)


def _confidence(given: str) -> float:
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not 0.5 < value < 1:
        raise argparse.ArgumentTypeError(f"{given} is no number between 0.5 and 1")
    return value


if __name__ == "__main__":
    main()

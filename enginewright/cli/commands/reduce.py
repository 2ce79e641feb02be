"""`enginewright reduce`."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from enginewright.cli.completion import FILE, FOLDER, PRECISION, add_completed, add_path
from enginewright.core.paths import ARTIFACTS

SUMMARY = "find the few nodes that a compiler gets wrong, to report them"
EXAMPLES = """\
examples:
  enginewright reduce int8
  enginewright reduce int8 --without-cures
  enginewright reduce bf16 --runtime tensorrt_rtx
  enginewright reduce fp32 --graph artifacts/exported/model.onnx

Compares the runtime with the definition of the graph, and leaves out nodes as
long as they differ, or as long as the runtime refuses them or crashes. The
folder has the graph, inputs, versions, and fails.py, which needs the runtime
and NumPy alone. Exits 0 if there is such a folder, and 1 if the runtime is
right."""


def add_arguments(command: ArgumentParser) -> None:
    add_completed(command, "precision", PRECISION, help="a precision that `dvc repro` converted, such as int8")
    add_path(command, "--graph", FILE, metavar="FILE", help="another ONNX file than the converted one")
    command.add_argument("--runtime", metavar="NAME", help="another runtime than the engines', such as tensorrt_rtx")
    cures = "read the graph as OpenVINO does by itself, without what is done about its known faults"
    command.add_argument("--without-cures", action="store_true", help=cures)
    limit = "the relative error from which on a result is wrong; a third of precisions.P.thresholds if not given"
    command.add_argument("--limit", type=above_zero, metavar="ERROR", help=limit)
    command.add_argument("--seconds", type=above_zero, default=600, metavar="SECONDS", help="how long to search, 600")
    add_path(command, "--out", FOLDER, metavar="FOLDER", help="reduced/PRECISION if not given")
    where = f"where what the pipeline made is, {ARTIFACTS} if not given"
    add_path(command, "--artifacts", FOLDER, default=ARTIFACTS, metavar="FOLDER", help=where)


def above_zero(given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{given} is no number above zero")
    return number


def run(chosen: Namespace) -> int:
    from enginewright.cli.reduce import reduce_precision

    cured = not chosen.without_cures
    given = chosen.graph, chosen.runtime, cured, chosen.limit, chosen.seconds, chosen.out, chosen.artifacts
    print(reduce_precision(chosen.precision, *given))
    return 0

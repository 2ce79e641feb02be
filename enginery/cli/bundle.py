"""`enginery bundle`."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from enginery.cli.completed import FOLDER, PRECISION, add_completed, add_path

SUMMARY = "a folder to deploy: engine, ONNX, examples, and a Triton model repository"
EXAMPLES = """\
examples:
  enginery bundle int8
  enginery bundle int8 --out /srv/models/digits

Only what passed the gate is bundled: exits 1, and says why, if the precision
broke a threshold, or if the engine is not the one that was validated."""


def add_arguments(command: ArgumentParser) -> None:
    add_completed(command, "precision", PRECISION, help="one that `dvc repro` made, such as int8")
    add_path(command, "--out", FOLDER, metavar="FOLDER", help="bundles/MODEL-PRECISION if not given")
    for name, what in (("artifacts", "what the pipeline made"), ("reports", "its verdict")):
        where = f"where {what} is, {name} if not given"
        add_path(command, f"--{name}", FOLDER, default=Path(name), metavar="FOLDER", help=where)


def run(chosen: Namespace) -> int:
    from enginery.bundle.write import write_bundle
    from enginery.lookup import BUNDLED, read_engine

    folder = write_bundle(chosen.precision, chosen.out, chosen.artifacts, chosen.reports)
    print(folder)
    if other := read_engine(folder / BUNDLED).ran_as:
        print(f"{chosen.precision} ran as {other} where it was judged, and is never recommended", file=sys.stderr)
    return 0

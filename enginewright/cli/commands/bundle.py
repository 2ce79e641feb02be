"""`enginewright bundle`."""

import sys
from argparse import ArgumentParser, Namespace

from enginewright.bundle.facts import require_passed
from enginewright.bundle.write import read_key, write_bundle
from enginewright.cli.arguments import FILE, FOLDER, PRECISION, add_completed, add_path
from enginewright.core.files import ARTIFACTS, REPORTS
from enginewright.core.params.all import Params

EXAMPLES = """\
examples:
  enginewright bundle int8
  enginewright bundle int8 --out /srv/models/digits
  enginewright bundle int8 --sign KEY.pem   verify.py in the bundle checks it

Only the engine that passed the gate is bundled. Exits 1 if there is none."""


def add_arguments(command: ArgumentParser) -> None:
    add_completed(command, "precision", PRECISION, help="a precision that `dvc repro` built, such as int8")
    add_path(command, "--out", FOLDER, metavar="FOLDER", help="bundles/MODEL-PRECISION if not given")
    sign = "sign the bundle with this private Ed25519 key, a PEM file"
    add_path(command, "--sign", FILE, metavar="KEY", help=sign)
    for folder, what in ((ARTIFACTS, "what the pipeline made"), (REPORTS, "its verdict")):
        where = f"where {what} is, {folder} if not given"
        add_path(command, f"--{folder}", FOLDER, default=folder, metavar="FOLDER", help=where)


def run(chosen: Namespace) -> int:
    key = read_key(chosen.sign) if chosen.sign else None
    passed = require_passed(chosen.precision, chosen.artifacts, chosen.reports)
    print(write_bundle(passed, Params.read(), chosen.out, key))
    for doubt in passed.doubts:
        print(doubt, file=sys.stderr)
    return 0

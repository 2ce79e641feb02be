"""What dvc.yaml starts: __main__.py runs a stage, which is a function in enginewright.pipeline."""

import os
import sys
from importlib.util import find_spec

NEEDED = ("numpy", "onnx", "pydantic", "ruamel.yaml")
OWN_PYTHON = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".venv", "bin", "python")


def _is_installed(name):  # type: ignore[no-untyped-def]  # old Pythons, which end up here too, know no annotations
    try:
        return find_spec(name) is not None
    except ImportError:
        return False


# `.venv/bin/dvc repro` runs stages with the first Python on the path, which need not be the project's.
if not all(map(_is_installed, NEEDED)):
    if os.path.exists(OWN_PYTHON) and os.path.abspath(sys.executable) != OWN_PYTHON:
        os.execv(OWN_PYTHON, [OWN_PYTHON, *sys.orig_argv[1:]])
    sys.exit("Enginewright's packages are not in this Python: run `make repro`, or `source .venv/bin/activate` first")

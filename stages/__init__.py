"""The verbs: one module per stage of dvc.yaml, under the stage's name."""

import importlib.util
import sys

if importlib.util.find_spec("pydantic") is None:
    sys.exit("Enginery's packages are not in this Python: run `make repro`, or `source .venv/bin/activate` first")

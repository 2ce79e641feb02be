"""Run a stage as dvc.yaml does: `python3 -m stages NAME`, with an option for each argument of the stage's function."""

import sys
from importlib import import_module

from enginery.pipeline.stage import run_stage

if __name__ == "__main__":
    name = sys.argv.pop(1)
    run_stage(getattr(import_module(f"stages.{name}"), name))

"""Run a stage as dvc.yaml does: `python3 -m stages NAME`, with an option for each argument of the stage's function."""

import os
import sys

from enginewright.core.cores import read_usage, share_cores, threads_in_words
from enginewright.core.process import TARGET, end_with_parent, escape_what_is_printed, outlive_crashes

COMPUTING = ("weights", "reference", "calibrate", "rescue", "search")  # for long, with all cores
RACING = ("benchmark", "race")  # PyTorch, which is to be as fast as it can be
OF_ENGINES = ("mix", "build", "validate", "benchmark", "race", "trace")  # which a target runs itself

if __name__ == "__main__":
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    escape_what_is_printed()
    end_with_parent()
    if TARGET in os.environ and name in OF_ENGINES:
        os.execv(sys.executable, [sys.executable, "-m", "enginewright.targets.ssh", name, *sys.argv[1:]])
    outlive_crashes(name)
    if name not in RACING:
        share_cores()
    before = read_usage()
    # Now, as its packages take a while, and Ctrl-C may come then.
    from enginewright.pipeline import STAGES, run_stage, stage_of

    if name not in STAGES:
        sys.exit(f"python3 -m stages NAME: '{name}' is no stage; there are {', '.join(sorted(STAGES))}")
    stage = stage_of(name)
    if name in COMPUTING and (line := threads_in_words(before)):
        print(f"{name}: {line}", flush=True)
    run_stage(stage)

"""Run the commands of a document."""

import os
import subprocess
import sys
from pathlib import Path

from support.warm_python import warm_python


def attempt(root, script):
    environment = os.environ | {
        "PATH": os.pathsep.join([str(warm_python()), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(root),
        **{f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=root, env=environment, capture_output=True, text=True
    )
    assert "Traceback" not in done.stdout + done.stderr, f"{script}\n{done.stdout}{done.stderr}"
    return done


def run(root, script):
    done = attempt(root, script)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout

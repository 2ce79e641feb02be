"""A project small enough to run many times."""

import shutil
import subprocess
from pathlib import Path

from support.checkout import Project, checkout
from support.paths import ROOT
from support.project import let_make_run


def tortured_project(root: Path, *more: str) -> Path:
    """Return a small project, committed, that `make` takes for one with an environment of its own. `more` names files
    of this repository that it has, too."""
    project = Project(checkout(root))
    project.make_small()
    let_make_run(root)
    for name in more:
        shutil.copy(ROOT / name, root)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a project"]):
        identity = ["-c", "user.name=torture", "-c", "user.email=torture@localhost"]
        subprocess.run(["git", *identity, *command], cwd=root, check=True)
    return root

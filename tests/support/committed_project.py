"""A project small enough to run many times."""

import shutil
import subprocess
from pathlib import Path

from ruamel.yaml import YAML

from enginewright.measure.timing import NAME as LOCK
from support.checkout import Project, checkout
from support.paths import ROOT
from support.project import let_make_run

CACHE = "torchinductor_"

# Outputs of these stages tell times: an engine says how long its build took, and validation names the engine by that.
# The precision `best` is chosen by times.
TIMED = ("build", "validate", "benchmark", "race", "trace", "report", "gate")


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


def results(root: Path) -> dict[str, str]:
    """Return DVC's hash of each output that does not depend on the machine's speed."""
    stages = YAML(typ="safe").load(root / "dvc.lock")["stages"]
    return {
        out["path"]: out["md5"]
        for name, stage in stages.items()
        if name.split("@")[0] not in TIMED and not name.endswith("@best")
        for out in stage.get("outs", [])
    }


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(path for path in one | other if one.get(path) != other.get(path))


def left_in_tmpdir(folder: Path) -> list[Path]:
    """Return what should have been removed: the lock of races and PyTorch's cache stay on purpose."""
    return [path for path in folder.iterdir() if path.name != LOCK and not path.name.startswith(CACHE)]

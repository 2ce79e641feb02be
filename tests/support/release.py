"""The archives of a release, and an environment with nothing else."""

import subprocess
import sys
import sysconfig

from support.paths import ROOT

COPIED = (
    "enginewright", "stages", "machine", ".dvc/plots", "pyproject.toml", "README.md", "LICENSE", "dvc.yaml",
    "params.yaml",
    ".dvcignore", "fleet.yaml",
)  # fmt: skip
OTHER_PACKAGES = {"PYTHONPATH": sysconfig.get_path("purelib")}  # those of this environment, in place of an index's


def done(*command, folder, **environment):
    """Run a command with no more than the machine has, and return what it prints."""
    result = attempt(*command, folder=folder, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def attempt(*command, folder, **environment):
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(folder)} | environment
    return subprocess.run(list(map(str, command)), cwd=folder, env=plain, capture_output=True, text=True)


def build_archives(folder):
    """Build the source archive, and the wheel from that. Return their folder."""
    for name in COPIED:
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        done("cp", "-a", ROOT / name, target, folder=folder)  # links stay links
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "source", folder=folder)
    return folder / "dist"

"""The archives of a release, and an environment with nothing else."""

import re
import subprocess
import sys
import sysconfig

import pytest

from support.paths import ROOT

COPIED = (
    "enginewright", "stages", "machine", ".dvc/plots", "pyproject.toml", "README.md", "LICENSE", "dvc.yaml",
    "params.yaml",
    ".dvcignore", "fleet.yaml",
)  # fmt: skip
OTHER_PACKAGES = {"PYTHONPATH": sysconfig.get_path("purelib")}  # those of this environment, in place of an index's

LIGHT = ("device", "openvino", "sign", "text")


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


def require_wheels(wanted):
    """Resolve the extras for each Python and processor, all at once, as each waits for the index."""
    uv = [sys.executable, "-m", "uv", "--quiet", "pip", "compile", "pyproject.toml", "--no-header", "--no-annotate"]
    uv += ["--only-binary", ":all:", "--no-binary", "cppimport"]  # which is Python alone
    asked, how = [], {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for python, extras, machine in wanted:
        words = [*uv, "--python-version", python, "--python-platform", f"{machine}-manylinux_2_35"]
        words += [word for extra in extras for word in ("--extra", extra)]
        asked.append((extras, subprocess.Popen(words, **how)))
    for (resolved, said), status, extras in [(each.communicate(), each.returncode, extras) for extras, each in asked]:
        if re.search("Failed to fetch|error sending request|client error|Could not connect", said):
            pytest.skip(f"no package index can be reached: {said.splitlines()[0]}")
        assert (status, "torch==" in resolved) == (0, "pipeline" in extras), said

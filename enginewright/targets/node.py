"""Lay out a commit on a node of the cluster, or here for a target of ssh, and run the pipeline there. A node gets this
module with the task, and so it imports nothing that a node could have in another version."""

import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CACHE = ".dvc/cache"  # stays, with the engines of earlier runs


class Sent(NamedTuple):
    name: str  # of the folder on the node
    commit: bytes  # an archive of the whole repository
    within: str  # where the project is in it
    files: Mapping[str, bytes]  # of the project, which differ from the commit
    arguments: tuple[str, ...]  # of enginewright.targets.here
    environment: Mapping[str, str] = {}

    @property
    def root(self) -> Path:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "enginewright", "fleet", self.name)

    @property
    def project(self) -> Path:
        return self.root / self.within


def run_on_node(sent: Sent) -> tuple[str, str, str]:
    """Return the node's name, the answer, and why there is none. Either of these is empty."""
    root, answer = sent.root, sent.root / "answer.json"
    _lay_out(root, sent)
    program = [sys.executable, "-m", "enginewright.targets.here", *sent.arguments, str(answer)]
    environment = os.environ | {"PYTHONPATH": str(sent.project), **sent.environment}
    log = root / "fleet.log"
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(
            program, cwd=sent.project, env=environment, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
    last = (log.read_text(errors="replace", encoding="utf-8").strip().splitlines() or ["it said nothing"])[-1]
    node = socket.gethostname()
    if done.returncode < 0:
        last = f"it was ended by signal {-done.returncode}, as when memory runs out, after: {last}"
    if done.returncode:
        return node, "", f"{last} (on {node}, more in {log})"
    return node, answer.read_text(encoding="utf-8"), ""


def _dvc_cache(root: Path, within: str) -> Path:
    """Return DVC's cache, in the .dvc that is nearest to the project: a project may have its own."""
    project = root / within
    above = [each for each in (project, *project.parents) if each.is_relative_to(root)]
    return next((each for each in above if (each / ".dvc").is_dir()), root) / CACHE


def _lay_out(root: Path, sent: Sent) -> None:
    """Write the commit's files over those of an earlier one. What DVC has cached stays."""
    root.mkdir(parents=True, exist_ok=True)
    kept = root.parent / f".{root.name}.cache"
    cached = _dvc_cache(root, sent.within)
    if cached.is_dir() and not kept.exists():
        cached.rename(kept)
    shutil.rmtree(root)
    root.mkdir()
    with tarfile.open(fileobj=io.BytesIO(sent.commit)) as archive:
        archive.extractall(root, filter="tar")
    if kept.is_dir():
        cached = _dvc_cache(root, sent.within)
        cached.parent.mkdir(exist_ok=True)
        kept.rename(cached)
    for name, content in sent.files.items():
        (root / sent.within / name).write_bytes(content)
    subprocess.run(["git", "init", "--quiet", str(root)], check=True, capture_output=True)

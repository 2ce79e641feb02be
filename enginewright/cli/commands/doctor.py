"""`enginewright doctor`: check whether `dvc repro` can run here, or a target over ssh be asked.

The checks of this file use only Python's own library: where packages are missing, nothing else could be imported."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from enginewright.cli.arguments import Check, State, painted
from enginewright.core.installing import how_to_install, old_name_hint
from enginewright.core.text import first_few

EXAMPLES = """\
examples:
  enginewright doctor
  enginewright doctor --target jetson     a target of fleet.yaml, over ssh
  enginewright doctor --json | jq -r '.findings[] | select(.remedy) | .remedy'

Exits 1 if `dvc repro` cannot run here, or the target not be asked."""


def add_arguments(command: ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object: can_run, findings")
    command.add_argument("--target", metavar="NAME", help="check this target of fleet.yaml instead")


def run(chosen: Namespace) -> int:
    checks = examine(chosen.target)
    can_run = not any(check.state is State.WRONG for check in checks)
    rows = {"can_run": can_run, "findings": [check._asdict() for check in checks]}
    print(json.dumps(rows, indent=2) if chosen.json else as_text(checks, sys.stdout, chosen.target))
    return 0 if can_run else 1


NEEDED_GB = 2.0  # the default pipeline leaves half as much in artifacts and in DVC's cache
INSTALL = f"make repro in a clone, else: {how_to_install('pipeline')}"
COLOURS = {State.FINE: "green", State.NOTE: "yellow", State.WRONG: "red"}


def examine(target: str | None) -> list[Check]:
    if target:
        from enginewright.cli.machine_checks import examine_target

        return examine_target(target)
    first = [examine_python(), examine_packages(), examine_project(), examine_git(), examine_disk()]
    if first[1].state is State.WRONG:
        return first
    from enginewright.cli.machine_checks import examine_machine

    return first + examine_machine()


def examine_python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= (3, 11):
        return Check("Python", State.FINE, found)
    return Check("Python", State.WRONG, f"{found} only runs engines", "install Python 3.11 or later, then: make repro")


def examine_packages() -> Check:
    """Compare the installed packages with the versions that the project allows."""
    try:
        declared = importlib.metadata.requires("enginewright") or []
    except importlib.metadata.PackageNotFoundError:
        return Check("packages", State.WRONG, "enginewright itself is not installed", INSTALL)
    if find_spec("packaging") is None:
        return Check("packages", State.WRONG, "packaging is missing", INSTALL)
    from packaging.requirements import Requirement

    lines = [Requirement(line) for line in declared]
    # An extra contains others.
    extras = {"pipeline"}.union(*(one.extras for one in lines if one.name == "enginewright"))
    others = (one for one in lines if one.name != "enginewright")
    needed = [one for one in others if not one.marker or any(one.marker.evaluate({"extra": name}) for name in extras)]
    missing, untried = [], []
    for one in needed:
        try:
            found = importlib.metadata.version(one.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(one.name)
            continue
        if not one.specifier.contains(found, prereleases=True):
            untried.append(f"{one.name} {found}, not {one.specifier}")
    if missing:
        return Check("packages", State.WRONG, f"missing: {first_few(missing)}", INSTALL)
    if untried:
        return Check("packages", State.NOTE, f"outside the versions that work: {first_few(untried)}", INSTALL)
    return Check("packages", State.FINE, f"all {len(needed)} in versions that work")


def examine_project() -> Check:
    here, absent = Path.cwd(), [name for name in ("dvc.yaml", "params.yaml") if not Path(name).exists()]
    if absent:
        remedy = "go to a project, or make one here: enginewright new"
        return Check("project", State.WRONG, f"{here} has no {', '.join(absent)}", remedy)
    if hint := old_name_hint():
        return Check("project", State.NOTE, hint, "enginewright upgrade")
    version = importlib.metadata.version("dvc") if find_spec("dvc") else "not installed"
    return Check("project", State.FINE, f"{here}, DVC {version}")


def examine_git() -> Check:
    if shutil.which("git") is None:
        return Check("git", State.WRONG, "not installed, but DVC needs it", "apt-get install git")
    if _git("rev-parse", "--is-inside-work-tree") is None:
        return Check("git", State.WRONG, f"{Path.cwd()} is not in a git repository", "clone the project, or: git init")
    branch, commit = _git("branch", "--show-current"), _git("rev-parse", "--short", "HEAD")
    changed = len((_git("status", "--porcelain") or "").splitlines())
    files = f"{changed} changed file{'s' * (changed != 1)}" if changed else "nothing changed"
    return Check("git", State.FINE, f"{branch or 'no branch'} at {commit or 'no commit yet'}, {files}")


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def examine_disk() -> Check:
    if not os.access(".", os.W_OK):  # as in a container's read-only mount
        remedy = "copy the project, or change its rights"
        return Check("disk", State.WRONG, f"{Path.cwd()} cannot be written to", remedy)
    free = shutil.disk_usage(".").free / 1e9
    found, remedy = f"{free:.1f} GB free", f"free {NEEDED_GB:.0f} GB; dvc gc -w drops old results"
    return Check("disk", State.WRONG, found, remedy) if free < NEEDED_GB else Check("disk", State.FINE, found)


def as_text(checks: Sequence[Check], stream: TextIO, target: str | None = None) -> str:
    """Write the checks. On a terminal, results are wrapped, but remedies are not: they may be commands to copy."""
    width = max(len(check.topic) for check in checks)
    room = max(20, shutil.get_terminal_size().columns - width - 9) if stream.isatty() else sys.maxsize
    lines = []
    for check in checks:
        state = painted(f"{check.state:5}", COLOURS[check.state], stream)
        first, *rest = textwrap.wrap(check.found, room, break_long_words=False)
        lines.append(f"{state}  {check.topic:<{width}}  {first}")
        lines += [f"{'':{width + 9}}{line}" for line in rest]
        if check.remedy:
            lines.append(f"{'':{width + 9}}-> {check.remedy}")
    wrong = ", ".join(check.topic for check in checks if check.state is State.WRONG)
    what, done = (target, "be asked") if target else ("`dvc repro`", "run here")
    verdict = f"{what} cannot {done}: first fix {wrong}." if wrong else f"{what} can {done}."
    return "\n".join([*lines, "", painted(verdict, "bold", stream)])

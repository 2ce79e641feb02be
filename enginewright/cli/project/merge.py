"""Merge what an owner changed in a file with what a new version changed: by git, three-way."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.scratch import scratch_folder
from enginewright.core.text import first_few

CONFLICT = re.compile(r"^<{7} mine\n(.*?)^\|{7} base\n(.*?)^={7}\n(.*?)^>{7} new\n", re.MULTILINE | re.DOTALL)
Settled = Callable[[str, str, str], str]  # by what the owner made of some lines, what they were, and the new ones


def merge(mine: str, base: str, new: str, path: Path, settled: Settled | None = None) -> str:
    """Return the text with both changes. Where both changed the same lines, only their owner can tell, or `settled`."""
    with scratch_folder() as folder:
        files = dict(zip(("mine", "base", "new"), (mine, base, new), strict=True))
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        labels = [part for name in files for part in ("-L", name)]
        command = ["git", "merge-file", "-p", "--diff3", *labels, *files]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if not 0 <= done.returncode <= 127:  # the number of conflicts
        raise EnginewrightError(f"{path}: git cannot merge it: {done.stderr.strip()}")
    if settled:
        return CONFLICT.sub(lambda found: settled(*found.groups()), done.stdout)
    if done.returncode:
        lines = [(ours or before).strip().partition("\n")[0] for ours, before, _ in CONFLICT.findall(done.stdout)]
        raise EnginewrightError(
            f"{path} cannot be merged: you and this version changed {first_few([f'`{line}`' for line in lines], 3)}. "
            "Undo your change there, upgrade, and make it again; nothing was changed"
        )
    return done.stdout

"""Let a runtime execute a graph in a process of its own, by the script that is sent to its authors."""

import re
import subprocess
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.process import end_with_parent
from enginewright.core.text import last_line
from enginewright.data.feeds import Feeds
from enginewright.graph.onnx_file import save_graph
from tools.reduction.case import Case

GRAPH, INPUTS, EXPECTED, SCRIPT = "model.onnx", "inputs.npz", "expected.npz", "fails.py"
CURED_GRAPH = "model.xml"  # OpenVINO's own form of a graph, after our cures
TRACEBACK = 1  # Python's exit code for a mistake in a script, or for a package that is missing
DIFFERS, REFUSED, UNCOMPARED = 2, 3, 4  # the script's own exit codes
ALIKE = 0.7  # of two messages, the least share of words that are the same


class Fault(NamedTuple):
    kind: Literal["differs", "refused", "crashes", "hangs"]
    message: str  # of the script: its last line

    def is_like(self, other: "Fault") -> bool:
        """Tell whether it may be the same fault. A part of a graph may be refused for another reason than the whole."""
        if self.kind != other.kind or self.kind == "differs":
            return self.kind == other.kind
        return SequenceMatcher(None, _words(self.message), _words(other.message), autojunk=False).ratio() >= ALIKE


def run_case(case: Case, script: str, folder: Path, prepare: str = "", seconds: float = 120) -> Fault | None:
    """Write the case into the folder, and return how the script fails there, or None if all is right.

    `prepare` is Python code that the child process executes before the script.
    """
    watched = f"from {end_with_parent.__module__} import end_with_parent\nend_with_parent()"
    save_graph(case.model, folder / GRAPH)
    for name, runs in ((INPUTS, case.runs), (EXPECTED, case.expected)):
        np.savez(folder / name, **_by_run(runs), allow_pickle=False)
    (folder / SCRIPT).write_text(script, encoding="utf-8")
    program = f"{watched}\n{prepare}\nimport runpy\nrunpy.run_path({SCRIPT!r}, run_name='__main__')"
    try:
        child = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=seconds,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return Fault("hangs", f"no answer within {seconds:.0f} s")
    message = last_line(child.stdout)
    match child.returncode:
        case 0:
            return None
        case code if code == REFUSED:
            return Fault("refused", message)
        case code if code == DIFFERS:
            return Fault("differs", message)
        case code if code == UNCOMPARED:
            raise EnginewrightError(f"{SCRIPT}: {message}: give a graph or samples that return something")
        case code if code == TRACEBACK:
            raise EnginewrightError(
                f"{SCRIPT} cannot run here, which says nothing of the graph: {last_line(child.stderr)}"
            )
        case code:
            return Fault("crashes", f"signal {-code}" if code < 0 else f"exit code {code}")


def _words(message: str) -> list[str]:
    return re.findall(r"[A-Za-z_]{3,}", message)


def _by_run(runs: Sequence[Feeds]) -> dict[str, Any]:
    return {f"{number}:{name}": array for number, run in enumerate(runs) for name, array in run.items()}

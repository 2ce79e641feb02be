"""Run a function in a process of its own, which can be ended whatever a library does in it. This module is also the
program of that process."""

import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import scratch_folder
from enginewright.core.process import end_with_parent, how_it_ended
from enginewright.core.text import last_line

Result = TypeVar("Result")


def run_apart(
    what: str, function: Callable[..., Result], *arguments: object, longest: float | None = None, quiet: bool = False
) -> Result:
    """Call a function of a module in a new process, and return its result or raise the error that it raised.

    An interrupt kills the process at once. It has a session of its own, so that Ctrl-C in a terminal does not reach it.
    `what` names the work in the sentence about a crash. `longest` is in seconds. With `quiet`, nothing that it prints
    is shown.
    """
    with scratch_folder() as scratch:
        asked, answered = scratch / "asked.pickle", scratch / "answered.pickle"
        asked.write_bytes(pickle.dumps((function, arguments)))
        command = [sys.executable, "-m", __name__, str(asked), str(answered)]
        out, error = (subprocess.PIPE, subprocess.STDOUT) if quiet else (None, None)
        with subprocess.Popen(command, start_new_session=True, stdout=out, stderr=error) as child:
            try:
                said = _wait(child, what, longest)
            finally:  # whatever ended the waiting, an interrupt above all
                child.kill()
                child.wait()
        if not answered.exists():
            why = how_it_ended(-child.returncode) if child.returncode < 0 else f"exit code {child.returncode}"
            raise EnginewrightError(f"{what} failed: {last_line((said or b'').decode(errors='replace')) or why}")
        result, failure = pickle.loads(answered.read_bytes())
    if failure:
        raise failure
    returned: Result = result
    return returned


def _wait(child: "subprocess.Popen[bytes]", what: str, longest: float | None) -> bytes | None:
    """Return what the process printed. Wait in short pieces: where another thread takes a signal, Python tells the main
    thread of it only when that is back from waiting. On an H200, Ctrl-C then waited 25 s for the end of a build."""
    ends = time.monotonic() + (math.inf if longest is None else longest)
    while True:
        try:
            return child.communicate(timeout=max(0, min(0.25, ends - time.monotonic())))[0]
        except subprocess.TimeoutExpired:
            if time.monotonic() >= ends:
                raise EnginewrightError(f"{what} took more than {longest:.0f} s") from None


def main(asked: str, answered: str) -> None:
    end_with_parent()
    function, arguments = pickle.loads(Path(asked).read_bytes())
    result, failure = None, None
    try:
        result = function(*arguments)
    except (EnginewrightError, OSError, MemoryError) as error:  # another is a mistake of ours: its traceback is shown
        failure = error
    Path(answered).write_bytes(pickle.dumps((result, failure)))


if __name__ == "__main__":
    main(*sys.argv[1:])

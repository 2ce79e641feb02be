"""Run the command `enginewright` as a user does, in a process of its own or here."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

from enginewright.cli.main import build_parser
from support.paths import ROOT
from support.warm_python import warm_python


def enginewright(*arguments, cwd=ROOT, **more):
    """Return what it prints, and its exit code. `more` is added to the environment."""
    return subprocess.run(
        [warm_python() / "enginewright", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"} | more,
        capture_output=True,
        text=True,
        timeout=120,
    )


def on_a_terminal(*arguments, cwd=ROOT, both=True, typed=None, **more):
    """Return what a terminal shows: both outputs, or only standard error if not `both`. `typed` is what one types."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    child = subprocess.Popen(
        [warm_python() / "enginewright", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"} | more,
        stdin=subprocess.DEVNULL if typed is None else theirs,
        stdout=theirs if both else subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, (typed or "").encode())
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    os.close(ours)
    child.wait()
    return seen.decode()


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


def run_here(*arguments):
    """Run a command of Enginewright in this process, and return its exit code."""
    chosen = build_parser(arguments[:1]).parse_args(list(map(str, arguments)))
    return chosen.run(chosen)

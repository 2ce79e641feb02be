"""End with the process that started this one, outlive the one that works, run a function in a process of its own, and
print nothing that controls the terminal. This module is also the program of that process."""

import ctypes
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from enginewright.core.errors import CompilerError, EnginewrightError
from enginewright.core.text import last_line, printable

Result = TypeVar("Result")
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
TARGET = "ENGINEWRIGHT_TARGET"  # of the environment: the target of the stages, where ssh reaches it
BY_KERNEL = 128  # the code of a signal that the kernel sent: at Ctrl-C, to all processes of the terminal
CRASHES = {getattr(signal, f"SIG{name}") for name in ("SEGV", "BUS", "ABRT", "ILL", "FPE", "SYS")}
ASKED_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_with_parent(parent: int | None = None) -> None:
    """Have Linux kill this process when its parent dies. If DVC is killed, the stage that it runs would otherwise go on
    alone, and write what the next `dvc repro` is writing. A parent that says its number may die while Python starts."""
    if sys.platform != "linux":
        return
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before Linux knew
        os.kill(os.getpid(), signal.SIGKILL)


def program_of(module: str) -> list[str]:
    """Return the command that runs a module, such as DVC, in a process which ends with this one."""
    code = f"from {__name__} import end_with_parent\nend_with_parent({os.getpid()})\nimport runpy\n"
    return [sys.executable, "-c", f"{code}runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"]


def start_dvc(*arguments: str, folder: Path | None = None, stderr: int | None = None) -> "subprocess.Popen[str]":
    """Start DVC in a process which ends with this one: if this one is killed, its DVC would otherwise go on alone, and
    stand in the way of the next one. Standard output is for results, so DVC's goes to standard error. Stages are run by
    `python3`, which must be this Python. DVC reports to nobody, also where no project tells it so yet."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        [*program_of("dvc"), *arguments],
        cwd=folder,
        env=os.environ | {"PATH": path, "DVC_NO_ANALYTICS": "true"},
        stdout=sys.stderr,
        stderr=stderr,
        text=True,
        errors="replace",
    )


def cache_of_dvc() -> str:
    """Return the folder of DVC's cache, or nothing where DVC has no project."""
    return subprocess.run([*program_of("dvc"), "cache", "dir"], capture_output=True, text=True).stdout.strip()


def stay_quiet_when_interrupted() -> None:
    """Have Ctrl-C end this process without a traceback wherever it is met: while packages are imported, which takes
    seconds, or typed again while what it began is removed."""

    def say(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        behind: BaseException | None = error  # a library that Ctrl-C meets at its import may raise an ImportError
        while behind and not isinstance(behind, KeyboardInterrupt):
            behind = behind.__cause__ or behind.__context__
        if behind is None:
            sys.__excepthook__(kind, error, where)

    sys.excepthook = say


def outlive_crashes(what: str) -> None:
    """Go on in a child process, and stay behind to say in a sentence how it ended if it crashes: a library that reads a
    damaged file can end its process, and so can the system when memory runs out. A process with threads goes on as it
    is: they would be missing in the child, with the locks that they hold."""
    stay_quiet_when_interrupted()
    if sys.platform != "linux" or len(os.listdir("/proc/self/task")) > 1:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream:  # None, if the caller closed it
            stream.flush()
    watched = {*ASKED_TO_END, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:  # the system gives no more processes: without one that stays behind, a crash only has its signal
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        end_with_parent(parent)
        return
    status, asked = _wait(child, watched)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if status >= 0:
        sys.exit(status)
    ended_by = asked if asked and -status in CRASHES else -status  # Ray's library aborts when it is asked to end
    if ended_by not in (signal.SIGINT, signal.SIGHUP) and sys.stderr:  # who types Ctrl-C, or leaves the terminal, knows
        print(f"{what}: {how_it_ended(ended_by)}", file=sys.stderr, flush=True)
    if ended_by in ASKED_TO_END:  # end as it did
        signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
        os._exit(128 + ended_by)  # the first process of a container does not end by a signal
    sys.exit(1)


def end_after(seconds: float | None) -> None:
    """Have the kernel end this process by then, whatever library is at work. None: never."""
    if seconds:
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _wait(child: int, watched: set[signal.Signals]) -> tuple[int, int]:
    """Pass signals on. Return the exit code, or minus the signal that ended the child, and the one that asked, or 0."""
    asked = 0
    while True:
        if sys.platform == "linux":
            sent = signal.sigwaitinfo(watched)
            typed = sent.si_signo == signal.SIGINT and sent.si_code == BY_KERNEL  # the child got it, too
            if sent.si_signo != signal.SIGCHLD:
                asked = sent.si_signo
                if not typed:
                    os.kill(child, asked)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), asked


def how_it_ended(number: int) -> str:
    """Say what a signal that ended a process means."""
    name = signal.strsignal(number) or f"signal {number}"
    kept = "the results of earlier runs are as they were"
    if number == signal.SIGKILL:
        return f"it was ended from outside ({name}), as the system does when memory runs out; {kept}"
    if number == signal.SIGALRM:
        return f"it took longer than `timeouts` in params.yaml allows, and was ended; {kept}"
    if number in CRASHES:
        return f"a library crashed ({name}), as on a damaged file; {kept}"
    return f"it was ended by a signal from outside ({name}); {kept}"


# Print what files say without letting it control the terminal: names of files and classes may hold anything.

OURS = re.compile(r"(\x1b\[\d*m|\x1b\[A|[\r\t])")  # colours, and what bars of progress need


def escape_what_is_printed() -> None:
    """Escape from now on what would control the terminal, in all that this process prints."""

    def escape(write: Callable[[str], int], text: str) -> int:
        parts = OURS.split(text)  # every second one is ours
        return write("".join(part if odd % 2 else printable(part) for odd, part in enumerate(parts)))

    for stream in (sys.stdout, sys.stderr):
        if stream and "write" not in vars(stream):
            stream.write = partial(escape, stream.write)  # type: ignore[method-assign]


# A function in a process of its own can be ended whatever a library does in it.


def run_apart(
    what: str, function: Callable[..., Result], *arguments: object, longest: float | None = None, quiet: bool = False
) -> Result:
    """Call a function of a module in a new process, and return its result or raise the error that it raised. An
    interrupt kills the process at once. It has a session of its own, so that Ctrl-C in a terminal does not reach it.
    `what` names the work in the sentence about a crash. `longest` is in seconds. With `quiet`, its output is hidden."""
    from enginewright.core.files import scratch_folder  # with pydantic, which commands do without

    with scratch_folder() as scratch:
        asked, answered = scratch / "asked.pickle", scratch / "answered.pickle"
        asked.write_bytes(pickle.dumps((function, arguments)))
        command = [sys.executable, "-m", __name__, str(asked), str(answered)]
        out, error = (subprocess.PIPE, subprocess.STDOUT) if quiet else (None, None)
        with subprocess.Popen(command, start_new_session=True, stdout=out, stderr=error) as child:
            try:
                said = _output_of(child, what, longest)
            finally:  # whatever ended the waiting, an interrupt above all
                child.kill()
                child.wait()
        if not answered.exists():
            why = how_it_ended(-child.returncode) if child.returncode < 0 else f"exit code {child.returncode}"
            # A library crashed, as TensorRT 10.6 did on an int4 graph on an H200.
            kind = CompilerError if -child.returncode in CRASHES else EnginewrightError
            raise kind(f"{what} failed: {last_line((said or b'').decode(errors='replace')) or why}")
        result, failure = pickle.loads(answered.read_bytes())
    if failure:
        raise failure
    returned: Result = result
    return returned


def _output_of(child: "subprocess.Popen[bytes]", what: str, longest: float | None) -> bytes | None:
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

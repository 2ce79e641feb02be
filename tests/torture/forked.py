"""Run a function in a forked child, within limits, and say how that ended."""

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from enginewright.core.errors import sentence_of
from enginewright.core.process import how_it_ended, outlive_crashes

WORKED, SENTENCE, TOLD = "works", "sentence", "crash told"  # TOLD: a library crashed, and a sentence says so
TRACEBACK, HANG, CRASH, OUTSIDE = "traceback", "hang", "crash", "outside"
LIMITS = [how_it_ended(number) for number in (signal.SIGXCPU, signal.SIGALRM)]
LONGEST = 1500  # of a sentence, in characters
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
PROGRAMS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")


class Ended(NamedTuple):
    how: str
    said: str


def run(work: Callable[[], object], inside: Path, memory: int, seconds: int) -> Ended:
    """Run the work with so many bytes of memory more than now, and so many seconds of CPU. It may write into the folder
    `inside`, and start no program."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with suppress(SystemExit):  # in the process that outlives a crash
            _work(work, inside, memory, seconds, writer)
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    how, _, what = said.partition("\n")
    if any(limit in said for limit in LIMITS):
        return Ended(HANG, f"more than {seconds} s of CPU, or {20 * seconds} s")
    if not how or os.waitstatus_to_exitcode(status) < 0:
        return Ended(CRASH, f"it ended with {os.waitstatus_to_exitcode(status)}: {said}")
    return Ended(how, what) if how in (WORKED, SENTENCE, TRACEBACK, OUTSIDE) else Ended(TOLD, how)


def _work(work: Callable[[], object], inside: Path, memory: int, seconds: int, writer: int) -> None:
    """Run the work as a stage is run, write how it ended into the pipe, and end."""
    os.dup2(writer, 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # which another program may have replaced
    outlive_crashes("fuzz")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    for number in (signal.SIGXCPU, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
    spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    most = int(spent) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 60))  # at the second limit the kernel kills, as for memory
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(20 * seconds)
    outside: list[str] = []
    sys.addaudithook(_watch([inside.resolve(), Path("/dev")], outside))
    how, said = WORKED, ""
    try:
        work()
    except BaseException as error:
        said = sentence_of(error) or ""
        how = SENTENCE if said and "\n" not in said and len(said) <= LONGEST else TRACEBACK
        if how == TRACEBACK:
            said = f"{len(said)} characters, {said.count(chr(10))} line ends: {said[:600]!r}" if said else _last(error)
    if outside:
        how, said = OUTSIDE, "; ".join(outside[:3])
    os.write(writer, f"{how}\n{said}".encode("utf-8", "backslashreplace")[:60_000])
    os._exit(0)


def _last(error: BaseException) -> str:
    """Return the error, and the innermost places of our own that it went through."""
    ours = [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {str(error)[:200]!r} at {' '.join(ours[-6:])}"


def _watch(allowed: list[Path], outside: list[str]) -> Callable[[str, tuple[object, ...]], None]:
    def hook(event: str, given: tuple[object, ...]) -> None:
        if event in PROGRAMS:
            outside.append(f"{event} {str(given)[:200]}")
        elif event == "open" and isinstance(given[2], int) and given[2] & WRITING and isinstance(given[0], str | bytes):
            require(event, given[0])
        elif event in CHANGES:
            for each in given:
                if isinstance(each, str | bytes | os.PathLike):
                    require(event, each)

    def require(event: str, path: object) -> None:
        try:
            real = Path(os.path.realpath(os.fsdecode(path)))  # type: ignore[arg-type]
        except ValueError:
            return
        if not any(real.is_relative_to(folder) for folder in allowed):
            outside.append(f"{event} {real}")

    return hook

"""A process that outlives a crash says in a sentence what happened, and otherwise ends as the one that worked."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from support.paths import ROOT

PROGRAM = """
import ctypes, os, signal, sys, time
from enginewright.core.process import outlive_crashes
outlive_crashes("work")
{}
"""


def start(work):
    program = [sys.executable, "-c", PROGRAM.format(work)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(program, cwd=ROOT, text=True, **pipes)


KEPT = "; the results of earlier runs are as they were\n"
DAMAGED = f", as on a damaged file{KEPT}"
KILLED = f"work: it was ended from outside (Killed), as the system does when memory runs out{KEPT}"

ASKED = f"work: it was ended by a signal from outside ({{}}){KEPT}"
LATE = f"work: it took longer than `timeouts` in params.yaml allows, and was ended{KEPT}"


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("print('done')", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('a sentence')", 1, "a sentence\n"),
        ("ctypes.string_at(0)", 1, f"work: a library crashed (Segmentation fault){DAMAGED}"),
        ("os.abort()", 1, f"work: a library crashed (Aborted){DAMAGED}"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 1, KILLED),
        ("from enginewright.core.process import end_after\nend_after(0.1)\ntime.sleep(60)", 1, LATE),
        ("os.kill(os.getpid(), 35)", 1, ASKED.format("Real-time signal 1")),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ASKED.format("Terminated")),
    ],
)
def test_a_crash_is_a_sentence_and_all_else_is_passed_on(work, code, said):
    process = start(work)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, said)
    assert printed == ("done\n" if "done" in work else "")


def test_where_the_system_gives_no_more_processes_the_work_goes_on():
    no_more = "import os\ndef fork():\n    raise BlockingIOError\nos.fork = fork\n"
    command = [sys.executable, "-c", no_more + PROGRAM.format("print('done')")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    ("sent", "work", "told"),
    [
        (signal.SIGINT, "", None),  # a KeyboardInterrupt
        (signal.SIGTERM, "", "Terminated"),
        (signal.SIGHUP, "", None),
        (
            signal.SIGTERM,
            "signal.signal(signal.SIGTERM, lambda *_: os.abort())\n",
            "Terminated",
        ),  # as Ray's library does
    ],
)
def test_who_is_asked_to_end_asks_the_one_that_works(sent, work, told):
    # Short sleeps, since Python does not interrupt one that begins while the signal arrives.
    process = start(f"{work}print(os.getpid(), flush=True)\nfor _ in range(600): time.sleep(0.1)")
    worker = int(process.stdout.readline())
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -sent
    assert errors == ASKED.format(told) if told else "ended" not in errors
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@pytest.mark.parametrize(
    "then",
    [
        "\nfinally: pass",
        "\nfinally: raise KeyboardInterrupt",  # typed twice
        "\nexcept BaseException as error: raise ImportError from error",  # as libraries do that are being imported
    ],
)
def test_ctrl_c_leaves_no_traceback_wherever_it_is_met(then):
    process = start(f"try: raise KeyboardInterrupt{then}")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode != 0, errors) == (True, "")


def test_any_other_error_leaves_its_traceback():
    process = start("1 / 0")
    _, errors = process.communicate(timeout=60)
    assert "ZeroDivisionError" in errors


def test_the_one_that_works_ends_with_the_one_that_waits():
    process = start("print('begun', flush=True)\ntime.sleep(600)")
    assert process.stdout.readline() == "begun\n"
    process.kill()
    process.communicate(timeout=60)  # it ends when the worker has closed the pipe, which it holds, too


def test_a_program_whose_parent_died_while_it_started_does_not_go_on():
    """A killed night is such a parent: its DVC would stand in the way of the next one."""
    printed = "from enginewright.core.process import program_of\nprint(program_of('this')[2])"
    orphan = subprocess.run([sys.executable, "-c", printed], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    ended = subprocess.run([sys.executable, "-c", orphan.stdout], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "")


def test_who_loses_the_terminal_ends_the_one_that_works():
    """The kernel tells the first process of the terminal alone."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execv(
            sys.executable, [sys.executable, "-c", PROGRAM.format("print(os.getpid(), flush=True)\ntime.sleep(60)")]
        )
    with os.fdopen(terminal) as screen:
        worker = int(screen.readline())
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGHUP
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)

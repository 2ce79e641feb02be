"""End with the process that started this one."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def end_with_parent() -> None:
    """Have Linux kill this process when its parent dies. If DVC is killed, the stage that it runs would otherwise go on
    alone, and write the outputs that the next `dvc repro` is writing."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before Linux knew
        os.kill(os.getpid(), signal.SIGKILL)

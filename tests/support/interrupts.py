"""Interrupt a build from within, as Ctrl-C does."""

import os
import signal
import time

from enginery.core.progress import Phases


def interrupt_at_first_step(monkeypatch):
    """Let the builder's first step ask for an interrupt. Return a list of the steps that it still takes."""
    steps = []

    def step(self, name, index):
        if not steps:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)  # let the thread that waits for the build see it: real steps take time, too
        steps.append(name)

    monkeypatch.setattr(Phases, "step", step)
    return steps

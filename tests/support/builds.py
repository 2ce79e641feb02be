"""Build with NVIDIA's libraries in the process of the tests: another one takes a second to start."""

from contextlib import contextmanager

import pytest

from enginewright.core.process import run_apart
from enginewright.engine.runtimes import load_runtime

BUILDER = "enginewright.engine.runtimes.tensorrt.run_apart"


def _run_here(_, work, *arguments, longest=None):
    """Call it on the runtime of this process, whose log the library has."""
    return getattr(load_runtime(work.__self__.name), work.__name__)(*arguments)


@contextmanager
def building_here():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BUILDER, _run_here)
        yield


def build_apart(monkeypatch):
    """Let a test about that process have it."""
    monkeypatch.setattr(BUILDER, run_apart)

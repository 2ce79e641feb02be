"""Fail the run if a precision broke a threshold or is not fast enough, after the report is complete."""

from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.regression.verdict import Verdict


def gate(verdict: Path, summary: Path) -> None:
    """Read the verdict, and write nothing."""
    found = Verdict.read(verdict).failures
    failures = [f"{name}: {', '.join(why)}" for name, why in found.items() if why]
    if failures:
        raise EngineryError(f"{'; '.join(failures)}. The report is complete: see {summary}")
    print(f"within their thresholds: {', '.join(found)}")

"""The gate, which fails the run after the report is complete."""

from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.measure.records import Verdict


def gate(verdict: Path, summary: Path) -> None:
    """Read the verdict, and write nothing."""
    found = Verdict.read(verdict)
    failures = [f"{name}: {', '.join(why)}" for name, why in found.failures.items() if why]
    unsure = [f"{name}: {', '.join(why)}" for name, why in found.unsure.items()]
    if not found.failures:
        raise EnginewrightError(
            f"{verdict} judges no precision, so that none is within its thresholds: run `dvc repro`"
        )
    if failures:
        raise EnginewrightError(f"{'; '.join(failures)}. The report is complete: see {summary}")
    if unsure:
        raise EnginewrightError(
            f"not enough samples to be sure, as validation.must_be_sure asks: {'; '.join(unsure)}. The report is "
            f"complete: see {summary}"
        )
    print(f"within their thresholds: {', '.join(found.failures)}")

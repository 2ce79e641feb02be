"""Red or green: fail the run if any precision broke a threshold, when all the evidence is in."""

from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.core.params import load_params
from enginery.core.records import Validation
from enginery.core.stage import run_stage


def gate(validation: Path, summary: Path) -> None:
    """Read every verdict; write nothing."""
    verdicts = [Validation.read(validation / f"{name}.json") for name in load_params().precisions]
    failures = [f"{verdict.precision}: {', '.join(verdict.broken)}" for verdict in verdicts if verdict.broken]
    if failures:
        raise EngineryError(f"{'; '.join(failures)}. The report is complete: see {summary}")
    print(f"all {len(verdicts)} precisions stayed within their thresholds")


if __name__ == "__main__":
    run_stage(gate)

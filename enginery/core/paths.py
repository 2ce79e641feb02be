"""Where the pipeline leaves what commands read. dvc.yaml tells stages their paths; a test holds the two together."""

from pathlib import Path

ARTIFACTS, REPORTS, HISTORY = Path("artifacts"), Path("reports"), Path("history")
ENGINES = ARTIFACTS / "engines"
MACHINE = ARTIFACTS / "machine.json"
VALIDATION_SAMPLES = ARTIFACTS / "samples" / "validation"
MEASUREMENTS = REPORTS / "measurements.json"
VERDICT = REPORTS / "verdict.json"
SUMMARY = REPORTS / "summary.md"
LOCK = Path("dvc.lock")

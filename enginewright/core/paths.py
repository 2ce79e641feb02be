"""The paths of results that commands read. Stages take theirs from dvc.yaml, and a test keeps the two alike."""

from pathlib import Path

ARTIFACTS, REPORTS, HISTORY = Path("artifacts"), Path("reports"), Path("history")
CONVERTED = ARTIFACTS / "converted"
ENGINES = ARTIFACTS / "engines"
MACHINE = ARTIFACTS / "machine.json"
VALIDATION_SAMPLES = ARTIFACTS / "samples" / "validation"
MEASUREMENTS = REPORTS / "measurements.json"
RACE = REPORTS / "race.json"
VERDICT = REPORTS / "verdict.json"
SUMMARY = REPORTS / "summary.md"
LOCK = Path("dvc.lock")

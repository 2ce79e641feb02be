"""Show what another program does to a ratio, and whether the report calls that ratio noisy.

It races one engine on its own, then beside a program that only computes: run `python
benchmarks/measuring/contention.py` after `dvc repro`. It exits 1 if a disturbed ratio is not called noisy. The first
race may be noisy too, because the host of a virtual machine serves others.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from enginewright.engine.machine import Machine
from enginewright.engine.record import RECORD, EngineRecord
from enginewright.measure.race import EnginesRace
from enginewright.measure.records import Benchmark, Trace, Validation
from enginewright.report.evidence import Evidence, Findings

PRECISION = "int8"
ENGINE = Path("artifacts/engines") / PRECISION
MACHINE, RACE = Path("artifacts/machine.json"), Path("reports/race.json")


def race(report: Path) -> Evidence:
    options = {
        "precision": PRECISION,
        "engine": ENGINE,
        "simplified": "artifacts/simplified",
        "weights": "artifacts/weights",
        "validation": "artifacts/samples/validation",
        "machine": MACHINE,
        "report": report,
    }
    command = [sys.executable, "-m", "stages", "benchmark"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Evidence(
        EngineRecord.read(ENGINE / RECORD),
        Validation.read(Path("reports/validation") / f"{PRECISION}.json"),
        Benchmark.read(report / "summary.json"),
        Trace.read(Path("reports/trace") / f"{PRECISION}.json"),
    )


@contextlib.contextmanager
def busy_program() -> Iterator[None]:
    # No Python: the one of the tests has its work done by another process, which would go on.
    program = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def main() -> None:
    print("| beside | batch | times eager (interval) | what the report says |")
    print("|---|---|---|---|")
    unnoticed = 0
    besides: dict[str, AbstractContextManager[None]] = {
        "nothing": contextlib.nullcontext(),
        "a busy program": busy_program(),
    }
    for beside, program in besides.items():
        with tempfile.TemporaryDirectory() as scratch, program:
            entry = race(Path(scratch) / PRECISION)
        findings = Findings(Machine.read(MACHINE), (entry,), EnginesRace.read(RACE))
        for ratio in entry.benchmark.ratios:
            why = findings.why_noisy(entry, ratio)
            unnoticed += beside != "nothing" and not why
            figures = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            print(f"| {beside} | {ratio.batch} | {figures} | {'; '.join(why) or 'nothing'} |", flush=True)
    if unnoticed:
        sys.exit(f"{unnoticed} disturbed ratios were not called noisy")


if __name__ == "__main__":
    main()

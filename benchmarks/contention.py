"""What another program does to a ratio, and whether the report would say so.

Races one engine by itself, then beside a program that does nothing but work: `python benchmarks/contention.py` after
`dvc repro`. Exits 1 if a disturbed ratio is not called noisy. One that nothing of ours disturbs may be: the host of a
virtual machine has others to serve.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from enginery.accuracy.records import Validation
from enginery.engine.folder import RECORD
from enginery.engine.machine import Machine
from enginery.engine.record import EngineRecord
from enginery.report.evidence import Evidence, Findings
from enginery.report.noise import reasons
from enginery.speed.layer_times import Trace
from enginery.speed.records import Benchmark

PRECISION = "int8"
ENGINE = Path("artifacts/engines") / PRECISION
MACHINE = Path("artifacts/machine.json")


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
    command = [sys.executable, "-m", "stages.benchmark"]
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
def a_busy_program() -> Iterator[None]:
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        program.kill()
        program.wait()


def main() -> None:
    print("| beside | batch | times eager (interval) | what the report says |")
    print("|---|---|---|---|")
    unseen = 0
    for beside, company in {"nothing": contextlib.nullcontext(), "a busy program": a_busy_program()}.items():
        with tempfile.TemporaryDirectory() as scratch, company:
            entry = race(Path(scratch) / PRECISION)
        alone = Findings(Machine.read(MACHINE), (entry,))
        for ratio in entry.benchmark.ratios:
            why = reasons(alone, entry, ratio)
            unseen += beside != "nothing" and not why
            figures = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
            print(f"| {beside} | {ratio.batch} | {figures} | {'; '.join(why) or 'nothing'} |", flush=True)
    if unseen:
        sys.exit(f"{unseen} disturbed ratios were not called noisy")


if __name__ == "__main__":
    main()

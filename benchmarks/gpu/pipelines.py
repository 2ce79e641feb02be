"""Note what `dvc repro` found of a project's engines: a row for each precision.

    python benchmarks/gpu/pipelines.py NAME       # in the project's folder; appends to pipelines.jsonl
    python benchmarks/gpu/pipelines.py --table    # prints all rows

A row has the types that layers run in, the error beside PyTorch, what broke, and milliseconds by batch size: of the
computation, and of the baselines in the same race. A precision that was not built has the reason.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from enginewright.core.files import ENGINES
from enginewright.engine.record import RECORD, REFUSED, EngineRecord
from enginewright.measure.records import Benchmark, Validation

ROWS = Path(__file__).with_suffix(".jsonl")
REPORTS = Path("reports")


def row_of(model: str, engine: Path) -> dict[str, Any]:
    precision = engine.name
    if not (engine / RECORD).exists():
        return {"model": model, "precision": precision, "refused": json.loads((engine / REFUSED).read_text())["why"]}
    record = EngineRecord.read(engine / RECORD)
    validation = Validation.read(REPORTS / "validation" / f"{precision}.json")
    row = {
        "model": model,
        "precision": precision,
        "on": f"{record.target.runtime} {record.target.runtime_version}, {record.target.device_name}",
        "layers": record.executed,
        "relative_error": float(f"{validation.engine_against_pytorch.relative:.2e}"),
        "of_the_graph": float(f"{validation.graph_against_pytorch.relative:.2e}"),
        "broken": validation.broken,
        "seconds_to_build": round(record.build_seconds),
    }
    summary = REPORTS / "benchmark" / precision / "summary.json"
    if summary.exists():
        times: dict[str, dict[int, float]] = {}
        for each in Benchmark.read(summary).latencies:
            times.setdefault(each.contender, {})[each.batch] = round(each.compute or each.p50, 3)
        row["milliseconds"] = times
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table or not options.name:
        for row in map(json.loads, ROWS.read_text().splitlines()):
            layers = ", ".join(f"{count} {name}" for name, count in row.get("layers", {}).items())
            times = row.get("milliseconds", {}).get("engine", {})
            said = row.get("refused") or f"{layers}; error {row['relative_error']:.1e}; {times or 'not timed'}"
            print(f"{row['model']}, {row['precision']}: {said}", *row.get("broken", ()), sep="\n    ")
        return 0
    with ROWS.open("a") as file:
        for engine in sorted(ENGINES.iterdir()):
            file.write(json.dumps(row_of(options.name, engine)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run models through `dvc repro` on a GPU with TensorRT, and note what was found of their engines.

    python benchmarks/gpu/pipelines.py --run mobilenet_v3 detector  # each in a folder of its own, some minutes a model
    python benchmarks/gpu/pipelines.py NAME       # in the folder of a project that ran; appends to pipelines.jsonl
    python benchmarks/gpu/pipelines.py --table    # prints all rows

A row for each precision has the types that layers run in, the error beside PyTorch, what broke, and milliseconds by
batch size: of the computation, and of the baselines in the same race. A precision that was not built has the reason.
Classifiers are trained on the digits there, for longer than their recipes ask of a CPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "networks"))
from zoo_models import TRAINED, train_by_graph

from enginewright.core.files import ENGINES
from enginewright.core.params.all import apply_recipe, edit_params
from enginewright.engine.record import RECORD, REFUSED, EngineRecord
from enginewright.measure.records import Benchmark, Validation

ROOT = Path(__file__).parents[2]
ROWS = Path(__file__).with_suffix(".jsonl")
REPORTS = Path("reports")
JOBS = 3
LEFT = shutil.ignore_patterns(".*", "artifacts", "reports", "history", "docs", "dvc.lock")


class Model(NamedTuple):
    """A recipe with what makes its data, or how long and how fast its classifier is trained on the GPU."""

    data: str = ""
    epochs: int = 0
    rate: float = 0.0
    calibration: int = 256


MODELS = {
    "resnet50": Model(epochs=60, rate=0.001),
    "mobilenet_v3": Model(epochs=60, rate=0.001),
    "efficientnet_b0": Model(epochs=60, rate=0.001),
    "vit_b_16": Model(epochs=100, rate=0.0003, calibration=128),
    "swin_t": Model(epochs=100, rate=0.0003, calibration=128),
    "convnext_tiny": Model(epochs=100, rate=0.0003, calibration=128),
    "detector": Model("recipes/scenes.py detector --device cuda"),
    "segmenter": Model("recipes/scenes.py --device cuda"),
    "sentence_encoder": Model("recipes/sentence_encoder.py"),
}


def run(names: list[str], precisions: list[str], baselines: list[str]) -> None:
    """Train, build and validate models, a few side by side, each on its share of the cores, and then time one after the
    other. Never more than a few: on 16 cores, three took eleven minutes, and seven fifteen to twenty-five."""
    count, jobs = os.cpu_count() or 1, min(JOBS, len(names))
    share, slots = max(1, count // jobs), SimpleQueue[int]()
    places = [Path(tempfile.mkdtemp(prefix=f"{name}-")) for name in names]
    for slot in range(jobs):
        slots.put(slot)

    def prepare(name: str, here: Path) -> int:
        slot = slots.get()
        cores = ",".join(str(each % count) for each in range(slot * share, slot * share + share))
        asked = [name, "--into", str(here), "--precisions", *precisions, "--baselines", *baselines]
        try:
            return subprocess.run(["taskset", "-c", cores, sys.executable, __file__, *asked], check=False).returncode
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(jobs) as pool:
        failures = [*pool.map(prepare, names, places)]
    for name, here, failed in zip(names, places, failures, strict=True):
        print(f"{name}: {'not prepared, ' if failed else ''}{here}", flush=True)
        if failed:
            continue
        os.chdir(here)
        subprocess.run(["dvc", "repro", "-k"], check=False)  # what fails has its sentence in the rows or above
        note(name)


def make_project(name: str, here: Path, precisions: list[str], baselines: list[str]) -> None:
    """Make a project of this one with a model's recipe in a folder, with trained weights, up to its validated engines.
    No two train at once."""
    model, python = MODELS[name], sys.executable
    shutil.copytree(ROOT, here, ignore=LEFT, dirs_exist_ok=True)
    shutil.copytree(ROOT / ".dvc", here / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    os.chdir(here)
    subprocess.run(["git", "init", "-q"], check=True)
    if model.data:
        subprocess.run([python, *model.data.split()], check=True)
    apply_recipe(Path(f"recipes/{name}.yaml"))
    edit_params(partial(set_up, model, precisions, baselines), __file__)
    subprocess.run([python, "-m", "enginewright.pipeline"], check=True)
    if model.epochs:
        subprocess.run(["dvc", "repro", "samples"], check=True)
        train_by_graph(Path("artifacts/samples/training"))
    subprocess.run(["dvc", "repro", "-k", "validate"], check=False)


def set_up(model: Model, precisions: list[str], baselines: list[str], params: dict[str, Any]) -> None:
    """Change the parameters of a recipe: this runtime, these precisions, and a training on the GPU."""
    params["runtime"] = "tensorrt"
    known, params["search"] = params["precisions"], {"int8": {"seconds": 120}} if "int8" in precisions else {}
    usual = {"int8": "searched", "fp8": "calibrated"}
    params["precisions"] = {name: known.get(name, {"from": usual.get(name, "simplified")}) for name in precisions}
    for each in params["precisions"].values():
        each.pop("must_pay", None)  # over another precision, which may not be made here
    params["samples"]["calibration"] = model.calibration
    params.setdefault("build", {}).setdefault("profile", {})["batch"] = {"min": 1, "opt": 32, "max": 128}
    params["benchmark"] |= {"batches": [1, 8, 32, 128], "seconds": 0.6, "baselines": baselines}
    if model.epochs:
        Path(TRAINED).parent.mkdir(parents=True, exist_ok=True)
        Path(TRAINED).touch()  # the pipeline asks for it before there are samples to learn from
        training = {"size": 224, "epochs": model.epochs, "learning_rate": model.rate, "device": "cuda"}
        params["samples"]["training"] = 1000
        params["weights"] = {"source": TRAINED, "training": training}


def note(name: str) -> None:
    with ROWS.open("a") as file:
        for engine in sorted(ENGINES.iterdir()):
            file.write(json.dumps(row_of(name, engine)) + "\n")


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
    parser.add_argument("names", nargs="*")
    parser.add_argument("--run", action="store_true", help=f"run these: {', '.join(MODELS)}")
    parser.add_argument("--into", type=Path, help="a folder to make the project of one model in, without timing it")
    parser.add_argument("--precisions", nargs="+", default=["fp16", "int8"])
    parser.add_argument("--baselines", nargs="+", default=["cuda_graph+channels_last+fp16"])
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table or not options.names:
        for row in map(json.loads, ROWS.read_text().splitlines()):
            layers = ", ".join(f"{count} {name}" for name, count in row.get("layers", {}).items())
            times = row.get("milliseconds", {}).get("engine", {})
            said = row.get("refused") or f"{layers}; error {row['relative_error']:.1e}; {times or 'not timed'}"
            more = [*row.get("broken", ()), *([f"beside {row['beside']}"] if "beside" in row else [])]
            print(f"{row['model']}, {row['precision']}: {said}", *more, sep="\n    ")
    if options.run and not options.names:
        parser.error(f"name models: {', '.join(MODELS)}")
    if options.into:
        make_project(options.names[0], options.into, options.precisions, options.baselines)
    elif options.run:
        run(options.names, options.precisions, options.baselines)
    else:
        for name in options.names:
            note(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

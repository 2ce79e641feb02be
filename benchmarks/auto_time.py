"""Time `calibrate` by `auto` beside `max`, in turns, each in a process of its own, as the stage runs.

    python benchmarks/auto_time.py                     # the models of MODELS
    python benchmarks/auto_time.py resnet50            # another one that torchvision knows
    python benchmarks/auto_time.py --rows FILE.jsonl   # and keep the rows

Weights are random but for the last layer. `seconds` has the stage's own time, without Python's start; `ratio` is the
median over turns of auto's time over max's.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import peers
import zoo
from zoo_models import Row

MODELS = ("mobilenet_v3_small", "resnet18", "googlenet", "regnet_x_400mf", "densenet121", "vit")
METHODS = ("max", "auto")
TURNS = 5
STAGE = """
import time
from pathlib import Path
from enginewright.core.params.all import Params
from enginewright.pipeline.ranges import calibrate
began = time.perf_counter()
made = Path("artifacts")
samples, dialect = made / "samples/calibration", made / "dialect.json"
calibrate(Params.read(), Path("data/calibration"), made / "simplified", samples, dialect, Path("calibrated-anew"))
print(time.perf_counter() - began)
"""


def run_model(name: str) -> Row:
    from enginewright.core.cores import usable_cores
    from enginewright.engine.runtimes import find_cpu

    peers.write_params(name, 0, "cpu")
    zoo.prepare(lambda _, call: call())
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(TURNS):
        for method in METHODS:
            zoo.change_params({"calibration": {"method": method}})
            seconds[method].append(stage_seconds())
    ratio = median(auto / most for auto, most in zip(seconds["auto"], seconds["max"], strict=True))
    where = f"{find_cpu().device_name}, {usable_cores()} cores"
    medians = {method: median(found) for method, found in seconds.items()}
    return {"model": name, "where": where, "seconds": medians, "ratio": ratio}


def stage_seconds() -> float:
    done = subprocess.run([sys.executable, "-c", STAGE], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--one", action="store_true")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_model(options.models[0])))
        return
    for name in options.models:
        row = json.loads(zoo.run_apart(Path(__file__), name)[-1])
        if options.rows:
            zoo.keep(options.rows, row)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

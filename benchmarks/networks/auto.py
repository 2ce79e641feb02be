"""Measure what `calibration.method: auto` gains and takes.

    python benchmarks/networks/auto.py costs efficientnet_b0 inception_v3 mobilenet_v2
    python benchmarks/networks/auto.py time             # the models of MODELS
    python benchmarks/networks/auto.py time resnet50    # another one that torchvision knows

`costs` compares what it may choose ranges by: the mean error of a sample alone, and with it that of all samples at
once. Models are trained as in peers.py. What is printed is the int8 graph as written against PyTorch, with weights of 8
bits and without rescues, over the validation set.

`time` times the stage beside `max`, in turns, each in a process of its own. Weights are random but for the last layer.
`seconds` has the stage's own time, without Python's start; `ratio` is the median over turns of auto's time over max's.

Each model has a process and a project of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from statistics import median
from unittest import mock

import numpy as np
import peers
import zoo

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


def compare_costs(name: str, epochs: int | None) -> None:
    peers.write_params(name, epochs, "cpu")
    zoo.prepare(lambda _, call: call())

    from enginewright.core.files import scratch_folder
    from enginewright.core.params.all import Params
    from enginewright.data.sample_set import SampleSet
    from enginewright.graph.as_written import open_as_written
    from enginewright.graph.onnx_file import load_graph
    from enginewright.precision.calibration import auto
    from enginewright.precision.calibration.calibrate import calibrate_graph
    from enginewright.precision.dialect import Dialect
    from enginewright.precision.in_dialect import Ingredients
    from enginewright.precision.rescue import Attempts

    graph = zoo.made_at("simplified/model.onnx")
    keep, params = Params.read().precisions["int8"].keep, Params.read().calibration
    samples, validation = (SampleSet.open(zoo.made_at(f"samples/{part}")) for part in ("calibration", "validation"))
    wanted = Dialect.read(zoo.made_at("dialect.json")).model_copy(update={"largest_weight": 127})
    exact = open_as_written(load_graph(graph))
    # The geometric mean of the mean error and itself is the mean error.
    by = auto.output_errors
    for title, errors in {"the mean alone": lambda *pair: (by(*pair).mean, by(*pair).mean), "both": by}.items():
        with scratch_folder() as scratch, mock.patch.object(auto, "output_errors", errors):
            ranges = calibrate_graph(graph.parent, samples, params, wanted, None, scratch)
            attempts = Attempts("int8", samples, scratch)
            made = open_as_written(attempts.write(Ingredients(graph, ranges, samples.cycled(1), wanted, keep)))
        pairs = [[each.run(None, dict(feeds))[0] for each in (made, exact)] for feeds in validation.batches(16)]
        found, right = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        mean, at_once = by([[found]], [[right]])
        cosine = np.mean((found * right).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(right, axis=1))
        print(
            f"{name}, by {title}: {mean:.4f} ({at_once:.4f}), "
            f"cosine {cosine:.4f}, agreement {np.mean(found.argmax(1) == right.argmax(1)):.1%}, "
            f"{dict(Counter(ranges.methods.values()))}"
        )


def compare_times(name: str, epochs: int | None) -> None:
    from enginewright.core.cores import usable_cores
    from enginewright.engine.runtimes import find_cpu

    peers.write_params(name, epochs or 0, "cpu")
    zoo.prepare(lambda _, call: call())
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(TURNS):
        for method in METHODS:
            zoo.change_params({"calibration": {"method": method}})
            done = subprocess.run([sys.executable, "-c", STAGE], stdout=subprocess.PIPE, text=True, check=True)
            seconds[method].append(float(done.stdout.splitlines()[-1]))
    ratio = median(auto / most for auto, most in zip(seconds["auto"], seconds["max"], strict=True))
    where = f"{find_cpu().device_name}, {usable_cores()} cores"
    medians = {method: median(found) for method, found in seconds.items()}
    print(json.dumps({"model": name, "where": where, "seconds": medians, "ratio": ratio}))


ASKED = {"costs": compare_costs, "time": compare_times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=tuple(ASKED))
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--one", action="store_true", help="run the one model in the current folder")
    options = parser.parse_args()
    if options.one:
        ASKED[options.what](options.models[0], options.epochs)
        return
    given = ["--epochs", str(options.epochs)] if options.epochs is not None else []
    for name in options.models:
        command = [sys.executable, peers.HERE / "auto.py", options.what, name, "--one", *given]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        results = [line for line in done.stdout.splitlines() if line.startswith((f"{name}, by", "{"))]
        print("\n".join(results), flush=True)


if __name__ == "__main__":
    main()

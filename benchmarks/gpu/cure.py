"""Find what cures the default model's fp8, whose sums are beyond float16 without what `quantize` does about that.

    python benchmarks/gpu/cure.py [--seconds 200] [--runtime tensorrt]

On an H200, TensorRT 10.6 then returns no numbers. Makes the project in a folder of its own, by the stages, and
runs `enginewright cure` there. The last line is the cure as JSON, as in cures/fp8.json. Takes less than six minutes.
"""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[1] / "networks"))
import zoo
from ruamel.yaml import YAML

from enginewright.cli.commands.cure import run as cure
from enginewright.engine.record import read_engine
from enginewright.precision import quantize

PRECISION: Literal["fp8"] = "fp8"
SETTINGS = {"precisions": {PRECISION: {"from": "calibrated", "rescue": "none"}}}


def timed(what: str, call: Callable[[], object]) -> object:
    started = time.monotonic()
    result = call()
    print(f"{what}: {time.monotonic() - started:.1f} s", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runtime", default="tensorrt")
    parser.add_argument("--seconds", type=float, default=200.0, help="to build in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        zoo.lay_over_params({"runtime": options.runtime, **SETTINGS})
        given = YAML().load(Path("params.yaml"))
        given["search"] = {}  # which a recipe cannot take out
        YAML().dump(given, Path("params.yaml"))
        zoo.prepare(timed)
        quantize.LARGEST_FP8_SUM = math.inf
        _, engine = zoo.make_engine(PRECISION, timed)
        print(read_engine(engine).executed)
        status = cure(argparse.Namespace(engine=engine, seconds=options.seconds, builds=100))
        if (found := Path("cures") / f"{PRECISION}.json").exists():
            print(found.read_text(encoding="utf-8").replace("\n", " "))
        os.chdir(zoo.ROOT)
    return status


if __name__ == "__main__":
    sys.exit(main())

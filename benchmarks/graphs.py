"""Race ONNX graphs in pairs, such as those that two commits write: how much faster is the second of each?

    python benchmarks/graphs.py onnxruntime old.onnx new.onnx           # on the GPU, if there is one
    python benchmarks/graphs.py openvino a.onnx b.onnx c.onnx d.onnx    # two pairs

Each graph is compiled as the stage build does, with the project's params.yaml as it comes, and opened anew in laps. Its
inputs are noise, or zeros where they are integers.
"""

import json
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from enginewright.core.params.all import Params
from enginewright.data.sample_set import SampleSet
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.interface import Blueprint, Interface
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.race import AFTER, BEFORE, race_sides

BATCHES, SECONDS = (1, 8), 2.0


@dataclass(frozen=True)
class Noise:
    """Give a race what it asks of a set of samples."""

    interface: Interface

    def cycled(self, batch: int) -> dict[str, NDArray[Any]]:
        return self.interface.noise({"batch": batch}, seed=batch)


@contextmanager
def opened(runtime: str, folder: Path, blueprint: Blueprint) -> Iterator[Callable[[Any], Callable[[], object]]]:
    (session,) = load_runtime(runtime).load(folder, blueprint, Params.read().inference, requests=1)
    with closing(session):
        yield session.bind


def race(runtime: str, before: Path, after: Path) -> dict[str, Any]:
    """Return the milliseconds of both by batch size, and how many times as fast the second is, with its interval."""
    params = Params.read().benchmark.model_copy(update={"batches": BATCHES, "seconds": SECONDS})
    row: dict[str, Any] = {"before": before.name, "after": after.name}
    with tempfile.TemporaryDirectory() as scratch:
        sides = {}
        for side, graph in ((BEFORE, before), (AFTER, after)):
            folder, blueprint = Path(scratch, side), read_blueprint(graph, Params.read().build)
            folder.mkdir()
            load_runtime(runtime).compile(graph, blueprint, folder)
            sides[side] = partial(opened, runtime, folder, blueprint)
        samples = cast(SampleSet, Noise(blueprint.interface))
        for change in race_sides(sides, samples, params, after.name).values():
            row[str(change.batch)] = {"ms": [change.before, change.after], "times": change.times(params.confidence)}
    return row


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runtime", choices=("onnxruntime", "openvino"))
    parser.add_argument("graphs", nargs="+", type=Path, help="before and after, pair by pair")
    options = parser.parse_args()
    for before, after in zip(options.graphs[::2], options.graphs[1::2], strict=True):
        print(json.dumps(race(options.runtime, before, after)), flush=True)


if __name__ == "__main__":
    main()

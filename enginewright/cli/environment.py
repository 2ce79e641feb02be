"""One of two environments that are compared, by `python -m enginewright.cli.environment RUNTIME` in its own Python. It
builds and runs engines as it is asked to, in a line of JSON each, and answers likewise."""

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from enginewright.core.params.build import BuildParams, InferenceParams
from enginewright.core.text import in_one_line
from enginewright.data.feeds import Feeds, Outputs
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.engine.runtimes.runtime import Session
from enginewright.graph.read_interface import read_blueprint

WARM_UP, FEWEST = 5, 3  # calls


def write_runs(runs: Iterable[Feeds], path: Path) -> None:
    arrays: dict[str, Any] = {f"{number}:{name}": run[name] for number, run in enumerate(runs) for name in run}
    np.savez(path, **arrays)


def read_runs(path: Path) -> list[Outputs]:
    runs: dict[int, dict[str, Any]] = {}
    with np.load(path) as stored:
        for key in stored.files:
            number, _, name = key.partition(":")
            runs.setdefault(int(number), {})[name] = stored[key]
    return [runs[number] for number in sorted(runs)]


class Side:
    def __init__(self, runtime: str) -> None:
        self.runtime = runtime
        self.session: Session | None = None

    def describe(self) -> dict[str, Any]:
        return describe_machine(self.runtime).model_dump()

    def build(self, folder: str, build: dict[str, Any]) -> float:
        """Build the engine of a folder's graph there, and return the seconds that it takes."""
        place, started = Path(folder), time.monotonic()
        blueprint = read_blueprint(place / "model.onnx", BuildParams.model_validate(build))
        example = min(read_runs(place / "runs.npz"), key=lambda run: sum(array.nbytes for array in run.values()))
        load_runtime(self.runtime).compile(place / "model.onnx", replace(blueprint, example=example), place)
        return time.monotonic() - started

    def open(self, folder: str, build: dict[str, Any], inference: dict[str, Any]) -> None:
        """Open the engine, and bind it to the first run."""
        place, how = Path(folder), InferenceParams.model_validate(inference)
        blueprint = read_blueprint(place / "model.onnx", BuildParams.model_validate(build))
        (self.session,) = load_runtime(self.runtime).load(place, blueprint, how, requests=1)
        self.call = self.session.bind(read_runs(place / "runs.npz")[0])
        for _ in range(WARM_UP):
            self.call()

    def run(self, folder: str) -> None:
        """Write the outputs of all runs."""
        assert self.session is not None
        runs = read_runs(Path(folder) / "runs.npz")
        write_runs([self.session.run(run) for run in runs], Path(folder) / "outputs.npz")

    def time(self, seconds: float) -> list[float]:
        """Return the seconds of each call."""
        found: list[float] = []
        while len(found) < FEWEST or sum(found) < seconds:
            started = time.perf_counter()
            self.call()
            found.append(time.perf_counter() - started)
        return found

    def close(self) -> None:
        if self.session is not None:
            self.session.close()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    side = Side(sys.argv[1])
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"answer": getattr(side, question.pop("ask"))(**question)}
        except Exception as error:  # each library raises errors of its own
            answer = {"error": in_one_line(error) or type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

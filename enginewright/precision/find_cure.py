"""Find what cures an engine that differs from its own graph, and what the cure costs: build the graph in other ways,
the cheapest first, until the engine is right; then with ever fewer nodes changed. No tensor becomes an output to be
looked at, as that alone can change what a compiler fuses."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES
from enginewright.core.files import scratch_folder
from enginewright.core.params.build import BenchmarkParams, BuildParams, InferenceParams
from enginewright.core.text import counted, in_one_line
from enginewright.data.feeds import Feeds, Outputs
from enginewright.engine.machine import Machine
from enginewright.engine.runtimes import Session, load_runtime
from enginewright.graph.as_written import run_as_written
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.agreement import compare
from enginewright.measure.race import race_engines
from enginewright.measure.timing import Bind, whole_machine
from enginewright.precision.cure import Change, Cure, Price
from enginewright.precision.islands import SPELLINGS, changed, layers_to_keep

Comparable = Callable[[Outputs, Outputs], tuple[Outputs, Outputs]]
AS_BUILT, CURED = "as built", "cured"
LEVELS = (2, 4)  # of optimization, beside TensorRT's own 3: one less, and one that takes minutes less than the last
NO_NUMBERS = "its outputs are no numbers"


@dataclass
class Trials:
    """Builds graphs for the compiler of a machine, and measures how far their engines are from them."""

    machine: Machine
    build: BuildParams
    inference: InferenceParams
    feeds: Sequence[Feeds]  # of several sizes: first those of the race, last the smallest
    limit: float  # of the relative error
    seconds: float
    comparable: Comparable = lambda expected, got: (expected, got)
    builds: int = field(default=0, init=False)
    error: float = field(default=math.inf, init=False)  # of the engine that was right last
    started: float = field(default_factory=time.monotonic, init=False)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.started > self.seconds

    def is_right(self, model: onnx.ModelProto, change: Change) -> bool:
        """Build a graph with a change, and say how it went. What is begun in time ends; later nothing is right."""
        if self.is_over or changed(model, change) is None:
            return False
        with scratch_folder() as folder:
            error, why = math.inf, NO_NUMBERS
            try:
                graph = self.compile(model, change, folder)
                error = self.error_of(folder, graph)
            except Exception as problem:  # each library raises errors of its own
                why = in_one_line(problem)
        is_right = error <= self.limit
        self.error = error if is_right else self.error
        said = f"{'right' if is_right else 'wrong'}, {share_of(error) or why}"
        print(f"build {self.builds}, with {change.in_words()}: {said}", flush=True)
        return is_right

    def compile(self, model: onnx.ModelProto, change: Change, folder: Path) -> Path:
        """Write the graph and its engine into a folder, and return the path of the graph."""
        self.builds, graph = self.builds + 1, folder / "model.onnx"
        save_graph(changed(model, change) or model, graph)
        blueprint = read_blueprint(graph, self.build.at_level(change.optimization_level))
        load_runtime(self.machine.runtime).compile(graph, replace(blueprint, example=self.feeds[-1]), folder)
        return graph

    def error_of(self, engine: Path, graph: Path) -> float:
        """Return the largest relative error of an engine beside its graph, which is infinite for what is no number."""
        run, errors = run_as_written(graph), []
        with self.open(engine, graph) as session:
            for feeds in self.feeds:
                expected, got = self.comparable(run(feeds), session.run(feeds))
                meant = sum(np.count_nonzero(~np.isfinite(values)) for values in expected.values())
                found = compare(expected, got)
                errors.append(math.inf if found.nonfinite > meant else found.relative)
        return max(errors)

    @contextmanager
    def open(self, engine: Path, graph: Path) -> Iterator[Session]:
        blueprint, inference = read_blueprint(graph, self.build), self.inference.on(self.machine.cores)
        (session,) = load_runtime(self.machine.runtime).load(engine, blueprint, inference, requests=1)
        with closing(session):
            yield session

    @contextmanager
    def contender(self, engine: Path, graph: Path) -> Iterator[Bind]:
        with self.open(engine, graph) as session:
            yield session.bind


def share_of(error: float) -> str | None:
    return f"a relative error of {error:.2g}" if math.isfinite(error) else None


def find_change(model: onnx.ModelProto, trials: Trials) -> Change:
    """Return the first change that makes the engine right, and of an island the fewest nodes that were found."""
    is_tensorrt, level = RUNTIMES[trials.machine.runtime].is_tensorrt, trials.build.tensorrt.optimization_level
    others = [Change(optimization_level=each) for each in LEVELS if is_tensorrt and each != level]
    islands = [Change(nodes=tuple(layers_to_keep(model, wide)), in_float32=wide) for wide in (False, True)]
    if islands[0].nodes == islands[1].nodes:
        islands.pop()  # it has no 16 bits
    for change in (*(Change(spelling=name) for name in SPELLINGS), *others, *(each for each in islands if each.nodes)):
        if trials.is_right(model, change):

            def is_enough(nodes: Sequence[str], of: Change = change) -> bool:
                return trials.is_right(model, of.keeping(nodes))

            return change.keeping(fewest(change.nodes, is_enough))
    raise EnginewrightError(
        f"the {trials.seconds:g} seconds were over after {counted(trials.builds, 'build')}: allow more with --seconds"
        if trials.is_over
        else "the engine stays wrong with all of its layers in high precision, and with each other spelling that is "
        f"known, in {counted(trials.builds, 'build')}: `enginewright reduce` finds the nodes, to report them"
    )


def fewest(nodes: Sequence[str], is_enough: Callable[[Sequence[str]], bool]) -> Sequence[str]:
    """Return few of the nodes that are enough, as all of them are: of which none can be left out, if time allows. Try
    halves first, then all but a quarter, and so on: delta debugging."""
    parts = 2
    while len(nodes) > 1:
        size = math.ceil(len(nodes) / parts)
        pieces = [nodes[start : start + size] for start in range(0, len(nodes), size)]
        others = [[node for node in nodes if node not in piece] for piece in pieces] if len(pieces) > 2 else []
        if (piece := next(filter(is_enough, pieces), None)) is not None:
            nodes, parts = piece, 2
        elif (rest := next(filter(is_enough, others), None)) is not None:
            nodes, parts = rest, max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts = min(len(nodes), 2 * parts)
    return nodes


def find_cure(precision: str, engine: Path | None, graph: Path, trials: Trials, params: BenchmarkParams) -> Cure | None:
    """Return what cures an engine of a graph, or the compiler that refused it (None), and the price; None if the engine
    is right."""
    error = trials.error_of(engine, graph) if engine else math.inf
    if error <= trials.limit:
        return None
    print(f"{precision} is {'wrong: ' + (share_of(error) or NO_NUMBERS) if engine else 'refused'}", flush=True)
    model = load_graph(graph)
    if trials.is_right(model, Change()):
        again = f"`dvc repro --force --single-item build@{precision}`"
        raise EnginewrightError(f"{precision} is wrong, and another build of its graph is right: {again}")
    change = find_change(model, trials)
    error_cured, types = trials.error, {node.name: node.op_type for node in model.graph.node}
    return Cure(
        precision=precision,
        change=change,
        operations=tuple(types[name] for name in change.nodes),
        **trials.machine.model_dump(include={"runtime", "runtime_version", "device_name"}),
        limit=trials.limit,
        refused=engine is None,
        error=error if math.isfinite(error) else None,
        error_cured=error_cured,
        price=price_of(change, engine, graph, trials, params) if engine else None,
        builds=trials.builds,
    )


def price_of(change: Change, engine: Path, graph: Path, trials: Trials, params: BenchmarkParams) -> Price:
    """Race the engine that is cured with the one that is not, on the first of the feeds."""
    feeds = trials.feeds[0]
    with scratch_folder() as folder:
        cured = trials.compile(load_graph(graph), change, folder)
        sides = {AS_BUILT: (engine, graph), CURED: (folder, cured)}
        openers = {name: partial(trials.contender, *side) for name, side in sides.items()}
        batch = len(next(iter(feeds.values())))
        with whole_machine("cure"), redirect_stdout(sys.stderr):
            raced = race_engines(openers, AS_BUILT, feeds, batch, params, trials.inference.threads)
    times = raced.times(CURED, AS_BUILT)
    return Price(
        batch=batch,
        milliseconds=(raced.milliseconds[AS_BUILT], raced.milliseconds[CURED]),
        speed=(times.median, times.low, times.high),
    )

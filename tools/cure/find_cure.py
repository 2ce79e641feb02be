"""Find what cures an engine that differs from its own graph, and what that costs: build the graph in other ways, the
cheapest first, until the engine is right, then with ever fewer nodes changed. No tensor becomes an output to be looked
at, as that alone can change what a compiler fuses."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import shorten

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
from enginewright.graph.data_apart import bodies_of
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.agreement import compare
from enginewright.measure.race import race_engines
from enginewright.measure.timing import Bind, whole_machine
from enginewright.precision.cure import Change, Cure
from enginewright.precision.islands import SPELLINGS, changed, low_tensors

LEVELS = (2, 4)  # of optimization, beside 3, TensorRT's own
NO_LAYERS = {"QuantizeLinear", "DequantizeLinear", "Cast"}
AS_BUILT, CURED = "as built", "cured"


@dataclass
class Trials:
    """Builds a graph with changes for the compiler of a machine, and measures how far the engine is from the graph."""

    machine: Machine
    build: BuildParams
    inference: InferenceParams
    comparable: Callable[[Outputs, Outputs], tuple[Outputs, Outputs]]  # as the task compares outputs
    feeds: Sequence[Feeds]  # of several sizes: first those of a race, last the smallest
    limit: float  # of the relative error
    seconds: float
    builds: int = field(default=0, init=False)
    error: float = field(default=math.inf, init=False)  # of the engine that was right last
    started: float = field(default_factory=time.monotonic, init=False)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.started > self.seconds

    def is_right(self, model: onnx.ModelProto, change: Change) -> bool:
        """Build the graph with a change, and say how that went. What begins in time ends; later nothing is right."""
        if self.is_over or changed(model, change) is None:
            return False
        with scratch_folder() as folder:
            try:
                error = self.error_of(folder, self.compile(model, change, folder))
                said = in_words(error)
            except Exception as problem:  # each library raises errors of its own
                error, said = math.inf, shorten(in_one_line(problem), 200)
        print(f"build {self.builds}, {change.in_words()}: {said}", flush=True)
        is_right = error <= self.limit
        self.error = error if is_right else self.error
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
        with self.opened(engine, graph) as session:
            for feeds in self.feeds:
                expected, got = self.comparable(run(feeds), session.run(feeds))
                meant = sum(np.count_nonzero(~np.isfinite(values)) for values in expected.values())
                found = compare(expected, got)
                errors.append(math.inf if found.nonfinite > meant else found.relative)
        return max(errors)

    @contextmanager
    def opened(self, engine: Path, graph: Path) -> Iterator[Session]:
        blueprint, inference = read_blueprint(graph, self.build), self.inference.on(self.machine.cores)
        (session,) = load_runtime(self.machine.runtime).load(engine, blueprint, inference, requests=1)
        with closing(session):
            yield session

    @contextmanager
    def contender(self, engine: Path, graph: Path) -> Iterator[Bind]:
        with self.opened(engine, graph) as session:
            yield session.bind


def in_words(error: float) -> str:
    return f"off by {error:.2g}" if math.isfinite(error) else "its outputs are no numbers"


def find_cure(precision: str, engine: Path | None, graph: Path, trials: Trials, params: BenchmarkParams) -> Cure | None:
    """Return what cures the engine of a graph, with its price in a race; None if the engine is right. There may be no
    engine, as the compiler refused the graph."""
    error = trials.error_of(engine, graph) if engine else math.inf
    if error <= trials.limit:
        return None
    print(f"{precision}: {in_words(error) if engine else 'refused'}", flush=True)
    model, feeds = load_graph(graph), trials.feeds[0]
    change, batch = find_change(model, trials), len(next(iter(feeds.values())))
    raced = None
    with scratch_folder() as folder:
        if engine:
            cured = folder, trials.compile(model, change, folder)
            sides = {AS_BUILT: (engine, graph), CURED: cured}
            openers = {name: partial(trials.contender, *side) for name, side in sides.items()}
            with whole_machine("cure"), redirect_stdout(sys.stderr):
                raced = race_engines(openers, AS_BUILT, feeds, batch, params, trials.inference.threads)
    times = raced.times(CURED, AS_BUILT) if raced else None
    types = {node.name: node.op_type for node in model.graph.node}
    return Cure(
        precision=precision,
        change=change,
        operations=tuple(types[name] for name in change.nodes),
        **trials.machine.model_dump(include={"runtime", "runtime_version", "device_name"}),
        error=error if math.isfinite(error) else None,
        error_cured=trials.error,
        batch=batch,
        milliseconds=(raced.milliseconds[AS_BUILT], raced.milliseconds[CURED]) if raced else None,
        speed=(times.median, times.low, times.high) if times else None,
        builds=trials.builds,
    )


def find_change(model: onnx.ModelProto, trials: Trials) -> Change:
    """Return the first change that makes the engine right, and of an island the fewest nodes that were found."""
    levels = LEVELS if RUNTIMES[trials.machine.runtime].is_tensorrt else ()
    islands = {layers_to_keep(model, wide): wide for wide in (True, False)}  # one, if there are no 16 bits
    for change in (
        Change(),
        *(Change(spelling=name) for name in SPELLINGS),
        *(Change(optimization_level=level) for level in levels),
        *(Change(nodes=nodes, in_float32=wide) for nodes, wide in reversed(islands.items()) if nodes),
    ):
        if trials.is_right(model, change):

            def is_enough(nodes: Sequence[str], of: Change = change) -> bool:
                return trials.is_right(model, of.keeping(nodes))

            return change.keeping(fewest(change.nodes, is_enough))
    spent = f"{trials.seconds:g} seconds and {counted(trials.builds, 'build')}"
    raise EnginewrightError(
        f"no cure was found in {spent}: allow more with --seconds"
        if trials.is_over
        else f"no cure was found in {spent}: the engine stays wrong with all layers in high precision, and with each "
        "other spelling that is known; `enginewright reduce` finds the nodes, to report them"
    )


def layers_to_keep(model: onnx.ModelProto, in_float32: bool) -> tuple[str, ...]:
    """Return the nodes that an island changes: those that read what is rounded to bytes, or with `in_float32` has 16
    bits."""
    before, halves = low_tensors(model, in_float32)
    nodes = [node for node in model.graph.node if node.name and node.op_type not in NO_LAYERS and not node.domain]
    low = before.keys() | halves.keys()
    return tuple(node.name for node in nodes if not low.isdisjoint(node.input) and not any(bodies_of(node)))


def fewest(nodes: Sequence[str], is_enough: Callable[[Sequence[str]], bool]) -> Sequence[str]:
    """Return few of the nodes that are enough, as all of them are: of which none can be left out, if time allows. Try
    halves, then quarters and all but a quarter, and so on: delta debugging."""
    parts = 2
    while len(nodes) > 1:
        size = math.ceil(len(nodes) / parts)
        pieces = [nodes[start : start + size] for start in range(0, len(nodes), size)]
        others = [[node for node in nodes if node not in piece] for piece in pieces] if len(pieces) > 2 else []
        found = next(filter(is_enough, (*pieces, *others)), None)
        if found is None and size == 1:
            break
        parts = min(len(nodes), 2 * parts) if found is None else 2 if found in pieces else max(2, parts - 1)
        nodes = nodes if found is None else found
    return nodes

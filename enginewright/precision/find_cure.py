"""Find what cures an engine that differs from its own graph, and what that costs: build the graph in other ways, with
barriers behind ever fewer nodes, or ever fewer as an island, and race all that are right. No other tensor becomes an
output: that alone can change what a compiler fuses."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple, TypeVar

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES
from enginewright.core.files import scratch_folder
from enginewright.core.params.build import BenchmarkParams, BuildParams, InferenceParams
from enginewright.core.text import counted, in_one_line
from enginewright.data.feeds import Feeds, Outputs
from enginewright.data.sample_set import SampleSet, checked_feeds
from enginewright.engine.machine import Machine
from enginewright.engine.runtimes import load_runtime
from enginewright.engine.runtimes.runtime import Session
from enginewright.graph.as_written import run_as_written
from enginewright.graph.interface import Blueprint
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.agreement import distance
from enginewright.measure.race import race_engines
from enginewright.measure.records import EnginesRace
from enginewright.measure.timing import Bind, whole_machine
from enginewright.measure.validate import spot_batches
from enginewright.precision.cure import Cure, GraphChange, Remedy
from enginewright.precision.islands import SPELLINGS, changed, layers_to_keep, nodes_to_part

LEVELS = (2, 4)  # of optimization, beside 3, TensorRT's own
AS_BUILT = "as built"
Node = TypeVar("Node")  # or what stands for one


class BuiltGraph(NamedTuple):
    """An engine in a folder, and the graph that it was built from."""

    folder: Path
    graph: Path


class Right(NamedTuple):
    change: GraphChange
    engine: BuiltGraph
    error: float | None  # None where engines do not run here


def feeds_for(samples: SampleSet, blueprint: Blueprint) -> list[Feeds]:
    """Return samples, or else noise, first of the size that the engine is tuned for, last of the smallest."""
    profile, interface = blueprint.build.profile, blueprint.interface
    batches = spot_batches(profile.batch)[::-1]
    if not len(samples):
        return [interface.noise(profile.at("opt") | {"batch": each}, 0) for each in (profile.batch.opt, *batches)]
    tuned, fed = samples.tuned(blueprint.build), samples.fed_to(blueprint.build)
    return [tuned.cycled(profile.batch.opt), *checked_feeds(fed, profile)[1:], *map(fed.cycled, batches)]


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
    most: int  # builds
    builds: int = field(default=0, init=False)
    started: float = field(default_factory=time.monotonic, init=False)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self.started > self.seconds or self.builds >= self.most

    @property
    def runs_here(self) -> bool:
        """Tell whether engines run on this machine: TensorRT for RTX builds them without a GPU, too."""
        return self.machine.device != "cuda" or bool(self.machine.capability)

    def attempt(self, model: onnx.ModelProto, change: GraphChange, scratch: Path) -> Right | None:
        """Build the graph with a change, say how that went, and return what is right. What begins in time ends."""
        if self.is_over or changed(model, change) is None:
            return None
        folder, error = scratch / str(self.builds), None
        try:
            engine = self.compile(model, change, folder)
            error = self.error_of(engine) if self.runs_here else None
            said = "it is built" if error is None else in_words(error)
        except Exception as problem:  # each library raises errors of its own
            error, said = math.inf, shorten(in_one_line(problem), 200)
        print(f"build {self.builds}, {change.in_words()}: {said}", flush=True)
        if error is None or error <= self.limit:
            return Right(change, engine, error)
        shutil.rmtree(folder)
        return None

    def compile(self, model: onnx.ModelProto, change: GraphChange, folder: Path) -> BuiltGraph:
        """Write the graph and its engine into a folder."""
        self.builds, graph = self.builds + 1, folder / "model.onnx"
        folder.mkdir(exist_ok=True)
        save_graph(changed(model, change) or model, graph)
        blueprint = read_blueprint(graph, self.build.at_level(change.optimization_level))
        load_runtime(self.machine.runtime).compile(graph, replace(blueprint, example=self.feeds[-1]), folder)
        return BuiltGraph(folder, graph)

    def error_of(self, engine: BuiltGraph) -> float:
        """Return the largest relative error of an engine beside its graph, which is infinite for what is no number."""
        run = run_as_written(engine.graph)
        with self.opened(engine) as session:
            return max(distance(*self.comparable(run(feeds), session.run(feeds))) for feeds in self.feeds)

    @contextmanager
    def opened(self, engine: BuiltGraph) -> Iterator[Session]:
        blueprint, inference = read_blueprint(engine.graph, self.build), self.inference.on(self.machine.cores)
        (session,) = load_runtime(self.machine.runtime).load(engine.folder, blueprint, inference, requests=1)
        with closing(session):
            yield session

    @contextmanager
    def contender(self, engine: BuiltGraph) -> Iterator[Bind]:
        with self.opened(engine) as session:
            yield session.bind


def in_words(error: float) -> str:
    return f"off by {error:.2g}" if math.isfinite(error) else "its outputs are no numbers"


def find_cure(precision: str, built: Path | None, graph: Path, trials: Trials, params: BenchmarkParams) -> Cure | None:
    """Return what cures the engine of a graph, with its price in a race; None if the engine is right. There may be no
    engine, as the compiler refused the graph."""
    engine = BuiltGraph(built, graph) if built else None
    error = trials.error_of(engine) if engine else math.inf
    if error <= trials.limit:
        return None
    print(f"{precision}: {in_words(error) if engine else 'refused'}", flush=True)
    model = load_graph(graph)
    with scratch_folder() as scratch:
        cures = find_cures(model, trials, scratch)
        names = {str(number): cure.engine for number, cure in enumerate(cures)}
        raced = race_all(({AS_BUILT: engine} if engine else {}) | names, trials, params) if trials.runs_here else None
    types = {node.name: node.op_type for node in model.graph.node}
    remedies = [
        Remedy(
            change=cure.change,
            operations=tuple(types[name] for name in cure.change.nodes),
            error=cure.error,
            milliseconds=raced.milliseconds[name] if raced else None,
            speed=raced.times(name, AS_BUILT) if raced and engine else None,
        )
        for name, cure in zip(names, cures, strict=True)
    ]
    return Cure(
        precision=precision,
        remedies=tuple(sorted(remedies, key=lambda each: each.milliseconds or 0)),
        **trials.machine.model_dump(include={"runtime", "runtime_version", "device_name"}),
        error=error if math.isfinite(error) else None,
        batch=len(next(iter(trials.feeds[0].values()))),
        milliseconds=raced.milliseconds.get(AS_BUILT) if raced else None,
        builds=trials.builds,
    )


def race_all(engines: Mapping[str, BuiltGraph], trials: Trials, params: BenchmarkParams) -> EnginesRace | None:
    """Race engines with the first of the feeds. One alone has no race."""
    if len(engines) == 1:
        return None
    openers = {name: partial(trials.contender, engine) for name, engine in engines.items()}
    feeds = trials.feeds[0]
    batch = len(next(iter(feeds.values())))
    with whole_machine("cure"), redirect_stdout(sys.stderr):
        return race_engines(openers, next(iter(engines)), feeds, batch, params, trials.inference.threads)


def find_cures(model: onnx.ModelProto, trials: Trials, scratch: Path) -> list[Right]:
    """Return what makes the engine right: another build, or each other spelling and level, and the smallest island."""
    if again := trials.attempt(model, GraphChange(), scratch):
        return [again]
    levels = LEVELS if RUNTIMES[trials.machine.runtime].is_tensorrt else ()
    others = [GraphChange(spelling=name) for name in SPELLINGS] + [GraphChange(optimization_level=n) for n in levels]
    cures = [cure for change in others if (cure := trials.attempt(model, change, scratch))]
    islands = {layers_to_keep(model, wide): wide for wide in (True, False)}  # one, if there are no 16 bits
    # A barrier cured one of seven faults of OpenVINO, and an island cost less there: it is offered none.
    parted = () if trials.machine.runtime == "openvino" else tuple(nodes_to_part(model))
    kept = [GraphChange(nodes=nodes, in_float32=wide) for nodes, wide in reversed(islands.items())]
    for changes in ([GraphChange(nodes=parted, apart=True)], kept):
        each_right = (trials.attempt(model, change, scratch) for change in changes if change.nodes)
        if right := next(filter(None, each_right), None):
            cures.append(with_fewest_nodes(right, model, trials, scratch))
    if cures:
        return cures
    spent = f"{trials.seconds:g} seconds and {counted(trials.builds, 'build')}"
    raise EnginewrightError(
        f"no cure was found in {spent}: allow more with --seconds and --builds"
        if trials.is_over
        else f"no cure was found in {spent}: the engine stays wrong with all layers in high precision, and with each "
        "other spelling that is known; `enginewright reduce` finds the nodes, to report them"
    )


def with_fewest_nodes(least: Right, model: onnx.ModelProto, trials: Trials, scratch: Path) -> Right:
    """Return a change of the fewest nodes that were found to be enough."""

    def is_enough(nodes: Sequence[str]) -> bool:
        nonlocal least
        found = trials.attempt(model, least.change.model_copy(update={"nodes": tuple(nodes)}), scratch)
        if found:
            shutil.rmtree(least.engine.folder)
            least = found
        return found is not None

    fewest(least.change.nodes, is_enough)
    return least


def fewest(nodes: Sequence[Node], is_enough: Callable[[Sequence[Node]], bool]) -> Sequence[Node]:
    """Return few of the nodes that are enough, as all of them are: of which none can be left out, if time allows. Take
    the shortest start, of this the shortest end, and leave out ever shorter stretches."""
    for side in (1, -1):
        few, most = 0, len(nodes)
        while most - few > 1:
            middle = (few + most) // 2
            few, most = (few, middle) if is_enough(nodes[::side][:middle][::side]) else (middle, most)
        nodes = nodes[::side][:most][::side]
    size = len(nodes) // 2
    while size:
        before = len(nodes)
        for stop in range(before, 0, -size):
            others = [*nodes[: max(0, stop - size)], *nodes[stop:]]
            nodes = others if others and is_enough(others) else nodes
        size = size // 2 or int(len(nodes) < before)
    return nodes

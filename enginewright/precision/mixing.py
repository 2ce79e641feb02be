"""Mix int8 and float precisions: cut a graph into blocks, find how long each takes in each type, here or by traces from
elsewhere, make the mixes that look fast, and race them in one process and in turns."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.params.build import BenchmarkParams, InferenceParams
from enginewright.core.user_files import user_file
from enginewright.data.feeds import middle_of
from enginewright.data.sample_set import SampleSet
from enginewright.engine.machine import Machine
from enginewright.engine.record import LayerTime, Speedup, node_names
from enginewright.graph.as_written import run_as_written
from enginewright.graph.onnx_file import save_graph
from enginewright.graph.shapes import as_ir
from enginewright.measure.benchmark import time_layers
from enginewright.measure.race import AFTER, BEFORE, open_contender, race_sides
from enginewright.measure.records import Trace
from enginewright.measure.timing import Bind, Timings, race, whole_machine
from enginewright.precision.checks import Checks
from enginewright.precision.in_dialect import Ingredients, quantize_beside
from enginewright.precision.placement import FLOATS, PRODUCTS, arithmetic_nodes
from enginewright.precision.records import AIM, Assignment, BlockTimes, Candidate, MixChoice

Block = tuple[str, ...]  # the names of its nodes
BlocksTimes = Mapping[PrecisionName, Sequence[float]]  # the milliseconds of each block in each type, int8 first
LayersTimes = NDArray[np.float64]  # the milliseconds of each layer of an engine, a row for each turn

# The price of a change of type between two blocks, as a share of the int8 engine's time. It stands for casts, whose
# time no trace shows beforehand, and for noise: with a small price a block moves for little, with a large one few do.
PRICES = (0.005, 0.01, 0.02, 0.04)

# Engines are traced in turns of a few calls, so that all meet the same moments of a noisy machine. In three turns of 48
# calls, as many as a single trace has, two traces of one engine named 21 and 9 layers that int8 slows down.
TURNS, CALLS = 15, 4
FEWEST_TURNS, LONG = 5, 10.0  # seconds for an engine, after which no turn follows: long calls are less noisy
MOSTLY = 0.5  # of the blocks must have a layer in a trace
CONFIDENCE, SEED = 0.95, 0
INT8 = 0  # its number among the candidates
RESAMPLES = 1000
NANOSECOND = 1e-6  # in milliseconds: OpenVINO counts in microseconds, of which a tiny network may take none


class Parts(NamedTuple):
    """The blocks of a graph, and the number of the block that each name belongs to."""

    blocks: list[Block]
    places: dict[str, int]

    def all_in(self, name: PrecisionName) -> Assignment:
        return (name,) * len(self.blocks)

    def floating(self, assignment: Assignment) -> dict[PrecisionName, tuple[str, ...]]:
        """Return the names of the nodes that are in each float type."""
        found: dict[PrecisionName, tuple[str, ...]] = {}
        for name, block in zip(assignment, self.blocks, strict=True):
            if name != "int8":
                found[name] = found.get(name, ()) + block
        return found

    def timed(self, times: BlocksTimes) -> tuple[BlockTimes, ...]:
        """Return what the record says of each block."""
        of_blocks = zip(self.blocks, zip(*times.values(), strict=True), strict=True)
        return tuple(
            BlockTimes(first=block[0], last=block[-1], milliseconds=dict(zip(times, each, strict=True)))
            for block, each in of_blocks
        )


def parts_of(model: onnx.ModelProto, int8: Ingredients) -> Parts:
    """Cut the graph that int8 is made of. Nodes that int8 leaves in floating point have no say in where."""
    blocks = blocks_of(model, arithmetic_nodes(model, int8.kept("int8", model)))
    return Parts(blocks, places_of(model, blocks))


def blocks_of(model: onnx.ModelProto, arithmetic: Collection[str]) -> list[Block]:
    """Return the blocks in their order: parts that a single tensor enters and a single tensor leaves. Each has at least
    one node that could be in int8.

    Between two blocks of different types only one tensor changes its type. Inside a block, as between a convolution and
    the residual sum that reads it, several would.
    """
    graph = as_ir(model).graph
    nodes = list(graph)
    last_reader = {value: number for number, node in enumerate(nodes) for value in node.inputs}
    last_reader |= dict.fromkeys(graph.outputs, len(nodes))
    crossing: set[ir.Value] = set()  # what products have made, and what is still to be read
    derived: set[ir.Value] = set()
    starts, latest, computes = [0], None, False
    for number, node in enumerate(nodes):
        if node.name in arithmetic:
            if latest is not None and computes:
                starts.append(latest)
            latest, computes = None, True
        # A mask, a table of constants or a shape may be read by all blocks, and changes no type.
        if node.op_type in PRODUCTS or derived.intersection(node.inputs):
            made = {value for value in node.outputs if value.dtype in FLOATS}
            derived |= made
            crossing |= made
        crossing = {value for value in crossing if last_reader.get(value, -1) > number}
        if len(crossing) <= 1:
            latest = number + 1
    ends = [*starts[1:], len(nodes)]
    return [tuple(node.name or "" for node in nodes[start:end]) for start, end in zip(starts, ends, strict=True)]


def places_of(model: onnx.ModelProto, blocks: Sequence[Block]) -> dict[str, int]:
    """Return the number of the block of each name: of a node, or of what it makes, after which compilers name layers,
    too: OpenVINO those that make the outputs, ONNX Runtime the convolutions of float graphs."""
    places = {name: number for number, nodes in enumerate(blocks) for name in nodes}
    made = {name: places[node.name] for node in model.graph.node for name in node.output}
    return made | places


def times_of_blocks(layers: Sequence[LayerTime], places: Mapping[str, int]) -> list[float]:
    """Return the milliseconds of each block. What a compiler adds, such as a cast, belongs to the next block."""
    times, waiting, place = [0.0] * (max(places.values()) + 1), 0.0, 0
    for layer in layers:
        waiting += layer.milliseconds
        if (named := _place(layer, places)) is not None:
            times[named] += waiting
            waiting, place = 0.0, named
    times[place] += waiting
    return times


def _place(layer: LayerTime, places: Mapping[str, int]) -> int | None:
    return next((places[name] for name in node_names(layer) if name in places), None)


def mixes_worth_trying(times: BlocksTimes) -> list[Assignment]:
    """Return the cheapest assignments, one for each price, without those that are all in one type."""
    whole = sum(times["int8"])
    found = dict.fromkeys(cheapest_assignment(times, price * whole) for price in PRICES)
    return [each for each in found if len(set(each)) > 1]


def cheapest_assignment(times: BlocksTimes, price: float) -> Assignment:
    """Return the cheapest types of all blocks. Of those that cost the same, they end in the first type."""
    cost = itemgetter(0)
    begun: dict[PrecisionName, tuple[float, Assignment]] = dict.fromkeys(times, (0.0, ()))  # by the type it ends in
    for block in zip(*times.values(), strict=True):
        cheapest, types = min(begun.values(), key=cost)
        before = [min(stays, (cheapest + price, types), key=cost) for stays in begun.values()]
        begun = {
            name: (so_far + time, (*types, name))
            for name, time, (so_far, types) in zip(times, block, before, strict=True)
        }
    return min(begun.values(), key=cost)[1]


class Bench(NamedTuple):
    """This machine, and how it times engines."""

    machine: Machine
    inference: InferenceParams
    samples: SampleSet  # in the sizes that engines are tuned for
    batch: int


class Traces(NamedTuple):
    machine: Machine  # that they are from
    times: dict[PrecisionName, LayersTimes]  # of the blocks in each type

    @property
    def medians(self) -> BlocksTimes:
        return {name: np.median(times, axis=0).tolist() for name, times in self.times.items()}

    def of(self, assignment: Assignment) -> LayersTimes:
        """Return what the parts of a mix take, without its changes of type."""
        return np.stack([self.times[name][:, number] for number, name in enumerate(assignment)], axis=1)


def trace_in_turns(
    precision: str, engines: Mapping[PrecisionName, Path], places: Mapping[str, int], bench: Bench
) -> Traces:
    """Trace the engines of all types here."""
    with whole_machine(f"mix, {precision}"):
        turns = _in_turns(list(engines.values()), bench)
    times = {}
    for (name, engine), of_one in zip(engines.items(), zip(*turns, strict=True), strict=True):
        _require_times(list(chain(*of_one)), places, str(engine))
        times[name] = np.array([times_of_blocks(layers, places) for layers in of_one])
    return Traces(bench.machine, times)


def layers_in_turns(engines: Sequence[Path], bench: Bench) -> list[LayersTimes]:
    """Return the milliseconds of the layers of each engine. A mix is traced by itself, since the times of its parts do
    not tell what its changes of type cost."""
    of_each = zip(*_in_turns(engines, bench), strict=True)
    return [np.array([[layer.milliseconds for layer in layers] for layers in of_one]) for of_one in of_each]


def _in_turns(engines: Sequence[Path], bench: Bench) -> list[list[list[LayerTime]]]:
    """Return the layers of each engine, turn by turn."""
    turns: list[list[list[LayerTime]]] = []
    began = monotonic()
    while len(turns) < FEWEST_TURNS or (len(turns) < TURNS and monotonic() - began < LONG * len(engines)):
        turns.append([time_layers(engine, bench.machine, bench.inference, bench.samples, CALLS) for engine in engines])
    return turns


def read_traces(
    folder: str, types: Sequence[PrecisionName], precision: str, places: Mapping[str, int], data: Path, bench: Bench
) -> Traces:
    """Read the traces of another machine: its reports/trace. The first two types must be there, others may be."""
    found = user_file(folder, data, f"mix.{precision}.traces", "null")
    paths = {name: found / f"{name}.json" for name in types}
    traces = {name: Trace.read(path) for name, path in paths.items() if name in types[:2] or path.exists()}
    machine, times = traces["int8"].machine, {}
    for name, trace in traces.items():
        if (trace.precision, trace.batch) != (name, bench.batch):
            raise EnginewrightError(
                f"{paths[name]} is a trace of {trace.precision} at batch {trace.batch}, and not of {name} at "
                f"batch {bench.batch}: take it there with the same build.profile"
            )
        if trace.machine != machine:
            raise EnginewrightError(
                f"{found}: int8.json is from {machine.in_words()}, and {name}.json from {trace.machine.in_words()}: "
                "take all on one machine"
            )
        _require_times(trace.layers, places, str(paths[name]))
        times[name] = np.array([times_of_blocks(trace.layers, places)])
    if machine.runtime != bench.machine.runtime:
        raise EnginewrightError(
            f"{found}: the traces are from {machine.in_words()}, and graphs are made for {bench.machine.runtime} here: "
            "take traces with the same runtime"
        )
    return Traces(machine, times)


def _require_times(layers: Sequence[LayerTime], places: Mapping[str, int], where: str) -> None:
    if not any(layer.milliseconds for layer in layers):
        raise EnginewrightError(f"{where}: the runtime gives no times of layers, by which parts are chosen")
    named = {_place(layer, places) for layer in layers} - {None}
    if (share := len(named) / (max(places.values()) + 1)) < MOSTLY:
        raise EnginewrightError(
            f"{where} is a trace of another graph: {share:.0%} of this one's parts have a layer in it. Trace this model"
        )


class Made(NamedTuple):
    assignment: Assignment
    engine: Path
    spent: float  # the largest part of what a threshold allows


@dataclass(frozen=True)
class CandidateMaker:
    """Writes the graphs of candidates as the stage convert does, builds their engines, and checks what they lose."""

    int8: Ingredients
    parts: Parts
    finished: Callable[[onnx.ModelProto], onnx.ModelProto]  # with what stands around each graph
    checks: Checks
    build: Callable[[Path, Path], object]  # of a graph an engine, in this folder

    def make(self, assignment: Assignment, folder: Path) -> Made:
        """Write and build a mix."""
        model, _ = quantize_beside(self.parts.floating(assignment), self.int8)
        return self.build_graph(model, assignment, folder)

    def build_graph(self, model: onnx.ModelProto, assignment: Assignment, folder: Path) -> Made:
        folder.mkdir()
        graph, engine = folder / "model.onnx", folder / "engine"
        save_graph(self.finished(model), graph)
        self.build(graph, engine)
        return self.check(assignment, graph, engine)

    def check(self, assignment: Assignment, graph: Path, engine: Path) -> Made:
        """Say what is lost by a graph that is built already."""
        return Made(assignment, engine, self.checks.check_run(run_as_written(graph), 0, 0.0).spent)


@dataclass(frozen=True)
class Races:
    engines: Sequence[Path]
    bench: Bench

    def race_all(self, numbers: Collection[int], seconds: float) -> Timings:
        """Race these engines at once."""
        with ExitStack() as opened:
            feeds = self.bench.samples.cycled(self.bench.batch)
            point = {str(number): opened.enter_context(self._opened(number))(feeds) for number in numbers}
            (timings,) = race([point], seconds, lambda: 0.0, np.random.default_rng(SEED), "mix, all")
        return timings

    def laps_of(self, rival: int, number: int, seconds: float) -> Speedup:
        """Race two engines anew in laps: a choice of the fastest flatters what is chosen."""
        params = BenchmarkParams(batches=(self.bench.batch,), seconds=seconds, confidence=CONFIDENCE, seed=SEED)
        sides = {BEFORE: partial(self._opened, rival), AFTER: partial(self._opened, number)}
        (change,) = race_sides(sides, self.bench.samples, params, "mix, the best").values()
        return change.times(CONFIDENCE)

    def _opened(self, number: int) -> AbstractContextManager[Bind]:
        return open_contender(self.engines[number], self.bench.machine, self.bench.inference)


def raced_speedup(timings: Timings, rival: int, number: int) -> Speedup:
    """Return how many times as fast one engine was as another in a race of all."""
    middle, low, high = timings.factor(str(number), str(rival), CONFIDENCE, np.random.default_rng(SEED))
    return Speedup(middle=middle, low=low, high=high)


def choose(
    precision: str,
    types: Sequence[PrecisionName],
    made: Sequence[Made],
    layers: Sequence[LayersTimes],
    races: Races | None,
    seconds: float,
) -> MixChoice:
    """Race all that keep the thresholds, then the fastest mix against the fastest that is in one type.

    Those in one type are first in `made`, in the order of `types`. `layers` has the times of the layers of each
    candidate. They decide without races.
    """
    pure = range(len(types))
    rivals = [number for number in pure if made[number].spent <= AIM]
    mixes = [number for number in range(len(types), len(made)) if made[number].spent <= AIM]
    if not rivals:
        closest = min(made[number].spent for number in pure)
        raise EnginewrightError(
            f"mix.{precision}: neither {' nor '.join(types)} keeps precisions.{precision}.thresholds on calibration "
            f"samples; the closest takes {closest:.0%} of what they allow, and {AIM:.0%} may be taken"
        )
    promised = [promise(layers[INT8], each) for each in layers]
    timings = races.race_all([*pure, *mixes], seconds) if races else None
    speeds = {
        number: raced_speedup(timings, INT8, number).middle if timings else promised[number].middle
        for number in (*pure, *mixes)
    }
    rival, mixed = max(rivals, key=speeds.__getitem__), max(mixes, key=speeds.__getitem__, default=None)
    delivered = None
    if races and timings and mixed is not None:
        # Race the mix anew, unless it has lost already: the choice of the fastest mix flatters it.
        first = raced_speedup(timings, rival, mixed)
        delivered = first if first.high < 1 else races.laps_of(rival, mixed, seconds)
    return MixChoice(
        candidates=tuple(
            Candidate(
                assignment=each.assignment,
                spent=each.spent,
                promised=promised[number],
                raced=speeds.get(number) if races else None,
            )
            for number, each in enumerate(made)
        ),
        mixed=mixed,
        rival=types[rival],
        promised=None if mixed is None else promise(layers[rival], layers[mixed]),
        delivered=delivered,
    )


def promise(rival: LayersTimes, mix: LayersTimes) -> Speedup:
    """Return how many times as fast a mix is as its rival, if each layer takes its median over the turns.

    A turn is over in milliseconds, and something else may have the machine then: the sum of a turn would tell of that.
    """
    turns = np.random.default_rng(SEED).integers(0, len(mix), (RESAMPLES, len(mix)))
    whole, *drawn = (_total(rival[each]) / _total(mix[each]) for each in (slice(None), *turns))
    low, high = middle_of(drawn, CONFIDENCE)
    return Speedup(middle=whole, low=low, high=high)


def _total(layers: LayersTimes) -> float:
    return max(float(np.median(layers, axis=0).sum()), NANOSECOND)

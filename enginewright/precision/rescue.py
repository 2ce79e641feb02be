"""Try what makes an int8 graph closer to the exact one, and keep what proves itself on other samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import scratch_folder
from enginewright.core.params.precisions import Keep, RescueName
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import open_as_written
from enginewright.graph.data_apart import bodies_of, in_memory, with_bodies
from enginewright.graph.onnx_file import fixed_batch, load_graph, save_graph
from enginewright.precision.calibration.auto import error_of
from enginewright.precision.calibration.cache import TINY
from enginewright.precision.calibration.calibrate import write_scaled
from enginewright.precision.dialect import Dialect
from enginewright.precision.equalize import equalize
from enginewright.precision.floats import shares_of_work
from enginewright.precision.in_dialect import Ingredients, quantize_in_dialect, rewritten, value_ranges
from enginewright.precision.placement import PRODUCTS, arithmetic_nodes
from enginewright.precision.records import Rescue, Rescued, Tried
from enginewright.precision.round_weights import round_weights

FITTED, CONFIRMED = 32, 64  # the most samples to round weights by, and those that must confirm a rescue
MEASURED = 256  # the most samples to measure channels by: few of them miss what a channel rarely reaches
BATCH = 8
ENOUGH = 0.01  # an error that bf16 causes, too: below it, only what is quick is tried unless more is asked for by name
QUICK: tuple[RescueName, ...] = ("round", "spare")  # scaled channels bring next to nothing there
LAST: RescueName = "spare"  # which is tried on what the others have left, and does not change what they do
MARGIN = 0.05  # the least gain, as a share of the error: gains on other samples were up to six points smaller
LOST = 1e6  # times the size of an output: no number, or no end, as where float16 overflows

SAME = 1e-4  # the largest relative error of a graph that computes the same in other steps
LITTLE_WORK, FEW_WEIGHTS = 0.001, 0.01  # of all


class Fitting(NamedTuple):
    """Samples to fit rescues to. None of them confirms one."""

    few: Sequence[Feeds]
    many: Callable[[], Iterable[Feeds]]  # reads them anew, since they may not fit into memory


Attempt = Callable[[Rescued, Fitting], Rescued | None]  # None where nothing can be changed


class Loss(NamedTuple):
    """The error of the outputs, relative to the size of the exact ones."""

    mean: float  # over samples
    at_once: float  # of all samples, which those with the largest outputs decide

    def is_less_than(self, other: "Loss") -> bool:
        """Tell whether samples gain on the whole, and those with the largest outputs do not pay for it."""
        return self.mean < (1 - MARGIN) * other.mean and self.at_once < (1 + MARGIN) * other.at_once


def confirming(count: int) -> NDArray[np.int64]:
    """Return the places of the samples that no rescue is fitted to, of so many. A single one must do both."""
    few = min(FITTED, max(1, count // 2))
    return (few + np.arange(max(1, min(CONFIRMED, count - few)))) % count


class Confirmation:
    """Samples to fit rescues to, and others that tell how far an int8 graph is from the exact one."""

    def __init__(self, exact: onnx.ModelProto, samples: SampleSet, batch: int = BATCH) -> None:
        """A smaller `batch` takes less memory: inputs of all layers are held at once."""
        places, checked = np.arange(len(samples)), confirming(len(samples))
        few, self.confirmed = min(FITTED, max(1, len(samples) // 2)), len(checked)
        measured = np.concatenate([places[:few], places[few + self.confirmed :]])[:MEASURED]
        self.fitted = len(measured)
        self._fixed, self._batch, self._samples = fixed_batch(exact), batch, samples
        self.fitting = Fitting(list(self._batches(places[:few])), partial(self._batches, measured))
        session = open_as_written(exact)
        self._checks = [(feeds, session.run(None, dict(feeds))) for feeds in self._batches(checked)]

    def loss(self, model: onnx.ModelProto) -> Loss:
        """Return both errors, each as the mean over outputs."""
        session = open_as_written(model)
        errors, squares = [], []
        for feeds, wanted in self._checks:
            pairs = list(zip(session.run(None, dict(feeds)), wanted, strict=True))
            errors.append([error_of(found, exact) for found, exact in pairs])
            squares.append([[_square(found - exact), _square(exact)] for found, exact in pairs])
        lost, whole = np.moveaxis(np.sum(squares, axis=0), 1, 0)
        found = float(np.mean(errors)), float(np.mean(np.sqrt(lost / np.maximum(whole, TINY))))
        return Loss(*(float(np.nan_to_num(each, nan=LOST, posinf=LOST)) for each in found))

    def _batches(self, chosen: NDArray[np.int64]) -> Iterator[Feeds]:
        for places in self._samples.places(chosen, self._fixed or self._batch, whole=bool(self._fixed)):
            yield self._samples.read_at(chosen[places])


def _square(array: NDArray[np.float32]) -> float:
    return float(np.square(array, dtype=np.float64).sum())


def find_rescues(
    precision: str,
    given: Rescued,
    attempts: Mapping[RescueName, Attempt],
    named: bool,
    trial: Confirmation,
    write: Callable[[Rescued], onnx.ModelProto],
) -> tuple[Rescue, Rescued]:
    """Try each and all of them, and keep the fewest that do no worse than more. What is `named` must be possible.
    Then try the last one on what is kept. `write` makes the graph in int8."""
    loss = trial.loss(write(given))
    enough = None if named else ENOUGH
    if enough is not None and loss.mean < enough:
        attempts = {name: attempt for name, attempt in attempts.items() if name in QUICK}
    best, kept, least, tried = given, tuple[RescueName, ...](), loss, []

    def made() -> Iterator[tuple[tuple[RescueName, ...], Rescued | None]]:
        """Yield what each makes of what is given, and of what those before it have made: one may need another."""
        made: dict[tuple[RescueName, ...], Rescued] = {(): given}
        for name in (name for name in attempts if name != LAST):
            for names, before in list(made.items()):
                if (changed := attempts[name](before, trial.fitting)) is not None:
                    made[*names, name] = changed
                if changed is not None or not names:
                    yield (*names, name), changed
        if LAST in attempts:
            yield (*kept, LAST), attempts[LAST](best, trial.fitting)

    for names, changed in made():
        if changed is None and named:
            raise EnginewrightError(
                f"precisions.{precision}.rescue: {names[-1]} does not apply to this graph, in which it finds nothing "
                "to change: remove it"
            )
        after = None if changed is None else trial.loss(write(changed))
        tried.append(Tried(names=names, error=after and after.mean, at_once=after and after.at_once))
        if changed is not None and after is not None and after.is_less_than(least):
            best, kept, least = changed, names, after
    record = Rescue(
        precision=precision,
        samples=(trial.fitted, trial.confirmed),
        error=loss.mean,
        at_once=loss.at_once,
        tried=tuple(tried),
        kept=kept,
        spared=best.spared,
        enough=enough,
    )
    return record, best


@dataclass(frozen=True)
class Attempts:
    """Makes each rescue from what the earlier ones have left, and int8 of what was rescued."""

    precision: str
    keep: Keep
    wanted: Dialect
    samples: SampleSet
    folder: Path  # where the files of a new graph go

    def write(self, rescued: Rescued) -> onnx.ModelProto:
        """Return the graph in int8 as the stage convert makes it."""
        plain, given = load_graph(rescued.graph), self._ingredients(rescued)
        with scratch_folder() as scratch:
            if (graph := rewritten(plain, self.wanted, self.precision)) is not None:
                given = given._replace(graph=scratch / "model.onnx")
                save_graph(graph, given.graph)
            made, _ = quantize_in_dialect(self.precision, given)
            return in_memory(made)  # large weights may be in a file of this folder

    def equalize(self, given: Rescued, fitting: Fitting) -> Rescued | None:
        """Scale channels. Ranges from elsewhere do not tell which side of zero a tensor lies on."""
        graph = load_graph(given.graph)
        kept, ranges = self._kept(graph, given), value_ranges(given.ranges, self.wanted)
        scaled = equalize(graph, kept, fitting.many(), ranges) if given.ranges.is_measured else None
        if scaled is None or not _computes_the_same(graph, scaled[0], fitting.few[0]):
            return None
        model = self.folder / "model.onnx"
        save_graph(scaled[0], model)
        return Rescued(model, write_scaled(given.ranges, scaled[1], model, self.samples), {})

    def round(self, given: Rescued, fitting: Fitting) -> Rescued | None:
        """Round weights to integers, which those of fp8 are not."""
        if self.precision != "int8":
            return None
        graph = load_graph(given.graph)
        rounded = round_weights(graph, self._kept(graph, given), fitting.few, self.wanted.largest_weight)
        return given._replace(rounded=rounded) if rounded else None

    def spare(self, given: Rescued, _: Fitting) -> Rescued | None:
        """Leave the end of the graph in floating point, if that takes no time."""
        graph = load_graph(given.graph)
        layers = arithmetic_nodes(graph, self._kept(graph, given))
        spared = end_of(graph, shares_of_work(graph, layers, self.samples.cycled(1)))
        return given._replace(spared=tuple(spared)) if spared else None

    def _kept(self, graph: onnx.ModelProto, given: Rescued) -> frozenset[str]:
        return self._ingredients(given).kept(self.precision, graph)

    def _ingredients(self, given: Rescued) -> Ingredients:
        graph, ranges, rounded, spared = given
        return Ingredients(graph, ranges, self.samples.cycled(1), self.wanted, self.keep, spared, rounded)


def _computes_the_same(graph: onnx.ModelProto, scaled: onnx.ModelProto, feeds: Feeds) -> bool:
    """Tell whether only the last bits differ. In float16, those of scaled weights are too many."""
    exact, found = (open_as_written(each).run(None, dict(feeds)) for each in (graph, scaled))
    return bool(np.all([error_of(*pair) <= SAME for pair in zip(found, exact, strict=True)]))


def end_of(model: onnx.ModelProto, work: Mapping[str, float]) -> list[str]:
    """Return the layers behind which no other product is, such as a classifier of few classes, if they are next to no
    work and hold next to no weights. No later layer evens out what they lose by rounding. `work` is the share of each
    layer that int8 could calculate."""
    before, end = set[str](), list[onnx.NodeProto]()  # tensors that a later product is made of
    for node in reversed(model.graph.node):
        whole = [node, *(each for body in bodies_of(node) for graph in with_bodies(body) for each in graph.node)]
        is_before = not before.isdisjoint(node.output)
        if node.name in work and not is_before:
            end.append(node)
        if is_before or any(each.op_type in PRODUCTS for each in whole):
            before.update(name for each in whole for name in each.input if name)
    weights = {tensor.name: prod(tensor.dims) for tensor in model.graph.initializer}
    held = sum(weights.get(name, 0) for name in {name for node in end for name in node.input})
    is_cheap = sum(work[node.name] for node in end) < LITTLE_WORK and held < FEW_WEIGHTS * sum(weights.values())
    return [node.name for node in end] if is_cheap else []

"""Try what makes an int8 graph closer to the exact one, and keep what proves itself on other samples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import scratch_folder
from enginewright.core.params.precisions import RescueName
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import open_as_written
from enginewright.graph.data_apart import bodies_of, in_memory, with_bodies
from enginewright.graph.onnx_file import fixed_batch, load_graph, save_graph
from enginewright.precision.calibration.auto import OutputErrors, output_errors
from enginewright.precision.calibration.calibrate import write_scaled
from enginewright.precision.equalize import equalize
from enginewright.precision.floats import shares_of_work
from enginewright.precision.in_dialect import Ingredients, for_compiler, quantize_in_dialect, value_ranges
from enginewright.precision.placement import PRODUCTS, arithmetic_nodes
from enginewright.precision.records import Rescue, TriedRescue
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


Attempt = Callable[[Ingredients, "Confirmation"], Ingredients | None]  # None where nothing can be changed


def confirming(count: int) -> NDArray[np.int64]:
    """Return the places of the samples that no rescue is fitted to, of so many. A single one must do both."""
    few = min(FITTED, max(1, count // 2))
    return (few + np.arange(max(1, min(CONFIRMED, count - few)))) % count


class Confirmation:
    """Samples to fit rescues to, and others that tell how far an int8 graph is from the exact one."""

    def __init__(self, exact: onnx.ModelProto, samples: SampleSet, batch: int = BATCH) -> None:
        """A smaller `batch` takes less memory: inputs of all layers are held at once."""
        self._fixed, self._batch, self._samples = fixed_batch(exact), batch, samples
        places, checked, few = np.arange(len(samples)), confirming(len(samples)), min(FITTED, max(1, len(samples) // 2))
        self._many = np.concatenate([places[:few], places[few + len(checked) :]])[:MEASURED]
        self.sizes = len(self._many), len(checked)
        self.few = list(self._batches(places[:few]))
        self._checks = list(self._batches(checked))
        self._exact = self._outputs(exact)

    def many(self) -> Iterator[Feeds]:
        """Yield more samples to fit rescues to, which may not fit into memory together."""
        return self._batches(self._many)

    def loss(self, model: onnx.ModelProto) -> OutputErrors:
        found = output_errors(self._outputs(model), self._exact)
        return OutputErrors(*(float(np.nan_to_num(each, nan=LOST, posinf=LOST)) for each in found))

    def _outputs(self, model: onnx.ModelProto) -> list[list[NDArray[np.float32]]]:
        session = open_as_written(model)
        return [session.run(None, dict(feeds)) for feeds in self._checks]

    def _batches(self, chosen: NDArray[np.int64]) -> Iterator[Feeds]:
        for places in self._samples.places(chosen, self._fixed or self._batch, whole=bool(self._fixed)):
            yield self._samples.read_at(chosen[places])


def find_rescues(
    precision: str,
    given: Ingredients,
    attempts: Mapping[RescueName, Attempt],
    named: bool,
    trial: Confirmation,
    write: Callable[[Ingredients], onnx.ModelProto],
) -> tuple[Rescue, Ingredients]:
    """Try each and all of them, and keep the fewest that do no worse than more. What is `named` must be possible.
    Then try the last one on what is kept. `write` makes the graph in int8."""
    loss = trial.loss(write(given))
    enough = None if named else ENOUGH
    if enough is not None and loss.mean < enough:
        attempts = {name: attempt for name, attempt in attempts.items() if name in QUICK}
    best, kept, least, tried = given, tuple[RescueName, ...](), loss, []

    def made() -> Iterator[tuple[tuple[RescueName, ...], Ingredients | None]]:
        """Yield what each makes of what is given, and of what those before it have made: one may need another."""
        made: dict[tuple[RescueName, ...], Ingredients] = {(): given}
        for name in (name for name in attempts if name != LAST):
            for names, before in list(made.items()):
                if (changed := attempts[name](before, trial)) is not None:
                    made[(*names, name)] = changed
                if changed is not None or not names:
                    yield (*names, name), changed
        if LAST in attempts:
            yield (*kept, LAST), attempts[LAST](best, trial)

    for names, changed in made():
        if changed is None and named:
            raise EnginewrightError(
                f"precisions.{precision}.rescue: {names[-1]} does not apply to this graph, in which it finds nothing "
                "to change: remove it"
            )
        after = None if changed is None else trial.loss(write(changed))
        tried.append(TriedRescue(names=names, error=after and after.mean, at_once=after and after.at_once))
        # Samples gain on the whole, and those with the largest outputs do not pay for it.
        if after and after.mean < (1 - MARGIN) * least.mean and after.at_once < (1 + MARGIN) * least.at_once:
            best, kept, least = changed or best, names, after
    record = Rescue(
        precision=precision,
        samples=trial.sizes,
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
    samples: SampleSet
    folder: Path  # where the files of a new graph go

    def write(self, given: Ingredients) -> onnx.ModelProto:
        """Return the graph in int8 as the stage convert makes it."""
        with scratch_folder() as scratch:
            made, _ = quantize_in_dialect(self.precision, for_compiler(self.precision, given, scratch))
            return in_memory(made)  # large weights may be in a file of this folder

    def equalize(self, given: Ingredients, trial: Confirmation) -> Ingredients | None:
        """Scale channels. Ranges from elsewhere do not tell which side of zero a tensor lies on."""
        if not given.ranges.is_measured:
            return None
        graph = load_graph(given.graph)
        kept, ranges = given.kept(self.precision, graph), value_ranges(given.ranges, given.dialect)
        scaled = equalize(graph, kept, trial.many(), ranges)
        if scaled is None:
            return None
        exact, found = (open_as_written(each).run(None, dict(trial.few[0])) for each in (graph, scaled[0]))
        # Only the last bits differ, but in float16 those of scaled weights are too many.
        if any(output_errors([[one]], [[other]]).mean > SAME for one, other in zip(found, exact, strict=True)):
            return None
        model = self.folder / "model.onnx"
        save_graph(scaled[0], model)
        return given._replace(graph=model, ranges=write_scaled(given.ranges, scaled[1], model, self.samples))

    def round(self, given: Ingredients, trial: Confirmation) -> Ingredients | None:
        """Round weights to integers, which those of fp8 are not."""
        if self.precision != "int8":
            return None
        graph = load_graph(given.graph)
        rounded = round_weights(graph, given.kept("int8", graph), trial.few, given.dialect.largest_weight)
        return given._replace(rounded=rounded) if rounded else None

    def spare(self, given: Ingredients, _: Confirmation) -> Ingredients | None:
        """Leave the end of the graph in floating point, if that takes no time."""
        graph = load_graph(given.graph)
        layers = arithmetic_nodes(graph, given.kept(self.precision, graph))
        spared = end_of(graph, shares_of_work(graph, layers, given.sample))
        return given._replace(spared=tuple(spared)) if spared else None


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

"""Find the fewest layers, by their work, that must stay in floating point for int8 or fp8 to keep its thresholds, or in
float32 for fp16 or bf16: try single layers, of which one session measures many, and sets of them."""

import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from platformdirs import user_cache_path
from typing_extensions import Self

from enginewright.core.cores import Cluster, Work, spread
from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.files import sha256_of
from enginewright.core.progress import progress
from enginewright.data.feeds import TINY, Feeds, Outputs, Run
from enginewright.data.run_all import OutputsOf, Running, outputs_on
from enginewright.graph.as_written import in_halves, run_optimized, running_graph
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.calibration.auto import norms_of_outputs
from enginewright.precision.checks import LOST, Checks
from enginewright.precision.placement import Placement
from enginewright.precision.records import AIM, Step
from enginewright.precision.write_int8 import Rounding, Writer

TOGETHER = 16  # layers that one session switches: opening it takes as long as measuring one of a large network
Site = tuple[str, str, int]  # a tensor that is rounded for the input of a node, by names
LossAlone = tuple[str, float]  # of a layer
Convert = Callable[[Collection[str]], onnx.ModelProto]
REST = 16  # that part of the other layers is spared next where the promise does not hold, and then twice as many
HARDLY_ANY = 0.01  # of the work: to leave so much in floating point, too, costs less than a try


class SwitchedGraph:
    """A graph in which one layer at a time can be in bytes. It rounds where `write_int8` does. Layers are arithmetic:
    what only moves numbers follows those it feeds."""

    def __init__(self, model: onnx.ModelProto, rounding: Rounding, layers: Collection[str], threads: int = 0) -> None:
        """Let each of these layers be switched to bytes. The fewer they are, the faster is the rest."""
        writer = Writer(model, rounding.kept, rounding.precision, rounding.exact_sums)
        every = {node.name or "" for node in writer.placement.arithmetic}
        alone = {name: rounding.kept | every - {name} for name in layers}
        self._sites = {name: _sites(writer.model, kept, rounding.exact_sums) for name, kept in alone.items()}
        self._graph, self._switches = writer.model.graph, dict[Site, str]()
        switched = set().union(*self._sites.values())
        for node in writer.placement.products:
            weights = node.inputs[1]
            if weights is None or weights.const_value is None or _site(weights, node, 1) not in switched:
                continue
            writer.round_weights(node, rounding)
            self._add_switch(weights, node, 1)
        for group in writer.groups:
            grid = writer.grid_for(group, rounding.ranges)
            for value, readers in group.items():
                few = [(node, index) for node, index in readers if _site(value, node, index) in switched]
                if few:
                    writer.round_activations({value: few}, grid)
                for node, index in few:
                    self._add_switch(value, node, index)
        self._run = run_optimized(ir.to_proto(writer.model), threads)

    def run_alone(self, layer: str) -> Run:
        """Return what runs the graph with this layer in bytes. What `write_int8` leaves in floats loses nothing."""
        sites = self._sites.get(layer, set())
        switches = {name: np.asarray(site in sites) for site, name in self._switches.items()}
        return lambda feeds: self._run({**feeds, **switches})

    def _add_switch(self, exact: ir.Value, node: ir.Node, index: int) -> None:
        """Let the node read what is rounded or what is exact, as an input of the graph says."""
        name = self._switches[_site(exact, node, index)] = f"switch.{len(self._switches)}"
        switch = ir.val(name, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
        self._graph.inputs.append(switch)
        # ONNX Runtime copies what If returns, which takes a tenth of the time of its Where.
        branches = {}
        for branch, value in {"then_branch": node.inputs[index], "else_branch": exact}.items():
            copy = ir.node("Identity", [value], outputs=[ir.val(f"{name}.{branch}")])
            branches[branch] = ir.Graph([], copy.outputs, nodes=[copy], name=branch)
        chosen = ir.node("If", [switch], branches, outputs=[ir.val(f"{name}.chosen")])
        node.prepend(chosen)
        node.replace_input_with(index, chosen.outputs[0])


def _sites(model: ir.Model, kept: Collection[str], exact_sums: bool) -> set[Site]:
    """Return what is rounded where with the nodes of these names in floating point."""
    placement = Placement(model, kept, exact_sums)
    activations = {
        _site(value, *reader) for group in placement.groups() for value, readers in group.items() for reader in readers
    }
    return activations | {_site(node.inputs[1], node, 1) for node in placement.products}


def _site(value: ir.Value | None, node: ir.Node, index: int) -> Site:
    return (value.name or "") if value is not None else "", node.name or "", index


class SwitchedHalves:
    """A graph in float32 in which one layer at a time can be in 16 bits."""

    def __init__(self, model: onnx.ModelProto, kind: int, layers: Collection[str], threads: int = 0) -> None:
        self._layers = layers
        self._run = run_optimized(in_halves(model, kind, layers, switched=True), threads)

    def run_alone(self, layer: str) -> Run:
        switches = {f"switch.{each}": np.asarray(each == layer) for each in self._layers}
        return lambda feeds: self._run({**feeds, **switches})


Switched = SwitchedGraph | SwitchedHalves
Switch = Callable[..., Switched]


def loss_alone(graph: Switched, layer: str, batches: Sequence[Feeds], answers: Sequence[Outputs]) -> float:
    """Return the relative error of the outputs if this layer alone is in the precision: the geometric mean of the
    root mean square over samples, and of that of all samples at once, which those with the largest answers decide.

    The squares of such errors add up, nearly. What an int8 graph gains from sparing one layer is a small difference of
    two large errors, and puts the layers in a worse order.
    """
    run = graph.run_alone(layer)
    found, exact = ([list(outputs.values()) for outputs in each] for each in (map(run, batches), answers))
    pairs = [np.maximum(pair, TINY) for pair in norms_of_outputs(found, exact)]
    of_each = np.mean([np.square(errors / sizes) for errors, sizes in pairs])
    of_all = np.mean([np.square(errors).sum() / np.square(sizes).sum() for errors, sizes in pairs])
    return float((of_each * of_all) ** 0.25)


class LayerName(str):
    def packed(self) -> Self:
        return self


@dataclass(frozen=True)
class LayersAlone(Work[LayerName, LossAlone]):
    """Measure what the outputs for some batches lose if one of these layers alone is in the precision."""

    folder: Path
    switch: Switch
    layers: Sequence[str]
    batches: Sequence[Feeds]

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[LayerName], LossAlone]]:
        graph = load_graph(self.folder / "model.onnx")
        answers = list(map(run_optimized(graph, threads), self.batches))
        switched = self.switch(graph, layers=self.layers, threads=threads)
        yield lambda layer: (layer, loss_alone(switched, layer, self.batches, answers))


def running_on(cluster: Cluster, graph: onnx.ModelProto, scratch: Path) -> OutputsOf | None:
    """Return what runs a graph over parts of the samples. It goes there as a file in the folder `scratch`."""
    return outputs_on(Running(_written(graph, scratch), partial(running_graph, optimized=True)), cluster)


def _written(graph: onnx.ModelProto, scratch: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=scratch))
    save_graph(graph, folder / "model.onnx")
    return folder


@dataclass(frozen=True)
class LayerTrial:
    """Says what the outputs lose with sets of layers spared, and with one layer alone in the precision: here, or on a
    cluster, to which graphs go in the folder `scratch`."""

    checks: Checks
    switch: Switch  # of one layer alone, by ranges that do not know the samples to measure layers by
    convert: Convert  # writes the graph with some layers spared
    scratch: Path
    cluster: Cluster | None = None
    unseen: Sequence[tuple[NDArray[np.int64], Convert]] = ()  # parts of the samples, with what knows no range of theirs

    def losses_alone(self, layers: Sequence[str]) -> Iterator[LossAlone]:
        """Yield each layer with the relative error of the outputs if it alone is in the precision."""
        checks = self.checks
        if self.cluster:
            work = LayersAlone(_written(checks.graph, self.scratch), self.switch, layers, checks.batches)
            yield from spread(work, map(LayerName, layers), self.cluster)
            return
        for start in range(0, len(layers), TOGETHER):
            together = layers[start:][:TOGETHER]
            switched = self.switch(checks.graph, layers=together)
            yield from ((layer, loss_alone(switched, layer, checks.batches, checks.answers)) for layer in together)

    def check(self, spared: Collection[str], work: float) -> Step:
        """Say what is lost with these layers in floating point."""
        run, there = self._running(self.convert(spared))
        return self.checks.check_run(run, len(spared), work, there)

    def judge(self, spared: Collection[str]) -> float:
        """Say what other samples may lose with these layers in floating point."""
        parts = self.unseen or [(np.arange(self.checks.judging), self.convert)]
        return self.checks.at_most((places, *self._running(convert(spared))) for places, convert in parts)

    def _running(self, written: onnx.ModelProto) -> tuple[Run, OutputsOf | None]:
        if self.cluster:  # the exact graph shows the shapes, which are the same
            return self.checks.exact, running_on(self.cluster, written, self.scratch)
        return run_optimized(written), None


class Journal:
    """A file with a line for each measurement, so that a search that was stopped goes on where it was. Two searches
    that ask the same questions share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            try:
                question, answer = json.loads(line)
                self._known[question] = answer
            except UNREADABLE:  # the last line of a run that was killed
                continue

    @classmethod
    def about(cls, *what: Any) -> Self:
        """Open the journal of these values, all of which the measurements depend on."""
        return cls(user_cache_path("enginewright") / "search" / f"{sha256_of(what)}.jsonl")

    def known(self, question: Any) -> Any | None:
        return self._known.get(sha256_of(question))

    def note(self, question: Any, answer: Any) -> None:
        key = sha256_of(question)
        self._known[key] = answer
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, answer]) + "\n")

    def answer(self, question: Any, measure: Callable[[], Any]) -> Any:
        """Return what is known, or measure it and note it down."""
        if self.known(question) is None:
            self.note(question, measure())
        return self.known(question)


class SearchAnswer(NamedTuple):
    losses: dict[str, float]  # by layer
    path: tuple[Step, ...]  # in the order in which they were tried
    spared: tuple[str, ...]


def find_spared(trial: LayerTrial, work: Mapping[str, float], journal: Journal, seconds: float) -> SearchAnswer:
    """Return the shortest start of all layers, ordered by worth, that keeps the thresholds when spared, or one with
    hardly more work. Then spare more, until samples that have chosen nothing show that others keep them, too."""

    path: dict[int, Step] = {}  # by how many are spared

    def question_of(spared: list[str]) -> list[Any]:
        return [trial.checks.limits.model_dump(), *spared]

    def tried(spared: list[str]) -> Step:
        share = sum(work[name] for name in spared)
        question = ["check", *question_of(spared)]
        path[len(spared)] = step = Step(**journal.answer(question, lambda: trial.check(spared, share).model_dump()))
        return step

    def judged(spared: list[str]) -> Step:
        step = tried(spared)
        if step.spent <= AIM:
            at_most = journal.answer(["judge", *question_of(spared)], lambda: trial.judge(spared))
            path[len(spared)] = step = step.model_copy(update={"at_most": at_most})
        return step

    few = judged([])
    if few.is_promised:
        return SearchAnswer({}, tuple(path.values()), ())
    enough, guesses = judged(sorted(work)), True
    if not enough.is_promised:
        return SearchAnswer({}, tuple(path.values()), ())
    losses = measure_layers(trial, work, journal, seconds)
    order = in_order_of_worth(losses, work)
    if len(order) < len(work) and not (enough := judged(order)).is_promised:
        return SearchAnswer(losses, tuple(path.values()), ())
    ordered = [losses[name] for name in order]
    if few.spent <= AIM:
        enough = few
    while (width := enough.spared - few.spared) > 1 and enough.work - few.work > HARDLY_ANY:
        middle = few.spared + width // 2
        guesses = guesses and few.spent < LOST
        number = _likely(ordered, few, enough) if guesses else middle
        step = tried(order[:number])
        few, enough = (few, step) if step.spent <= AIM else (step, enough)
        # A guess that halves nothing is followed by a half, and that by a guess.
        guesses = not guesses or enough.spared - few.spared <= width / 2
    least = number = enough.spared
    more = stride = max(1, (len(order) - number) // REST)
    while not judged(order[:number]).is_promised:
        least, number, more = number, min(len(order), number + more), 2 * more
    while number - least > stride:
        middle = (least + number) // 2
        least, number = (least, middle) if judged(order[:middle]).is_promised else (middle, number)
    return SearchAnswer(losses, tuple(path.values()), tuple(order[:number]))


def _likely(losses: Sequence[float], few: Step, enough: Step) -> int:
    """Return how many layers must be spared if errors add up by their squares between what is too few and enough."""
    squares = np.square(losses[few.spared : enough.spared])
    share = (few.spent**2 - AIM**2) / (few.spent**2 - enough.spent**2)  # of these squares, which must go
    last = int(np.searchsorted(np.cumsum(squares), share * squares.sum()))  # that is spared
    return few.spared + min(last + 1, len(squares) - 1)  # fewer than what is known to be enough


def measure_layers(trial: LayerTrial, work: Mapping[str, float], journal: Journal, seconds: float) -> dict[str, float]:
    """Return what each layer loses alone, as far as the time allows: first those that are cheapest to spare."""
    order = sorted(work, key=lambda each: (work[each], each))
    unknown = [name for name in order if journal.known(["alone", name]) is None]
    started = time.monotonic()
    in_time = takewhile(lambda _: time.monotonic() - started < seconds, trial.losses_alone(unknown))
    for name, loss in progress(in_time, "layers alone", len(unknown), "layers"):
        journal.note(["alone", name], loss)
    known = {name: journal.known(["alone", name]) for name in order}
    losses = {name: loss for name, loss in known.items() if loss is not None}
    if not losses:
        raise EnginewrightError(f"{seconds:g} seconds do not suffice to measure one layer: allow more")
    return losses


def in_order_of_worth(losses: Mapping[str, float], work: Mapping[str, float]) -> list[str]:
    """Return the layers, those first that lose most for their work. Errors of layers add up by their squares."""
    change = 0.5 / len(work)  # what it costs to leave int8 and to return to it, whatever the layer's size
    return sorted(losses, key=lambda name: (-(losses[name] ** 2) / (work[name] + change), name))

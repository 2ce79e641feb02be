"""Choose the range of each tensor by what its rounding costs the outputs: `calibration.method: auto`."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.core.cores import in_parallel
from enginewright.core.params.precisions import AUTO, METHODS, CalibrationParams
from enginewright.data.feeds import Feeds, Values, norms, relative_error
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import open_optimized
from enginewright.graph.onnx_file import fixed_batch
from enginewright.precision.calibration.cache import TINY
from enginewright.precision.calibration.histogram import Histogram, choose_amax
from enginewright.precision.dialect import Dialect
from enginewright.precision.floats import nodes_in_floats
from enginewright.precision.write_int8 import Bounds, Grid, Writer, dtype_of, grid_of, grid_of_channels, names_of

WORTH_TRYING = 0.01  # the least difference between the logarithms of two ranges
WORTH_TAKING = 0.005  # the least gain, as a share of the cost, since chance makes smaller ones on a few samples
TRIES = 16
SIGNED = 128  # the byte without a sign that stands for 0 where others have one
CHOOSING, CHECKING = (0, 8), (8, 40)  # the samples to choose by, and those that must confirm it

Ranges = Mapping[str, float]
Batches = Iterable[Sequence[Values]]  # of outputs
Cost = Callable[[Ranges], float]


class RangeChoice(NamedTuple):
    amax: dict[str, float]
    methods: dict[str, str]  # by tensor; empty if the parameters name one for all, as `costs` is
    costs: dict[str, float]  # what MethodTrial.on tells if all tensors take one method, and as chosen


def choose_ranges(
    graph: onnx.ModelProto,
    histograms: Mapping[str, Histogram],
    samples: SampleSet,
    params: CalibrationParams,
    dialect: Dialect,
) -> RangeChoice:
    """Return the range of each tensor by the method that the parameters name, which may be `auto`."""

    def ranges(method: str, names: Iterable[str]) -> dict[str, float]:
        chosen = list(names)
        found = in_parallel(lambda name: choose_amax(histograms[name], method, params.percentile), chosen)
        return dict(zip(chosen, found, strict=True))

    if params.method != AUTO:
        return RangeChoice(ranges(params.method, histograms), {}, {})
    lowest = {name: histogram.lowest for name, histogram in histograms.items()}
    channels = {
        name: each.channels for name, each in histograms.items() if dialect.by_channel and each.channels is not None
    }
    beyond = nodes_in_floats("int8", graph, ranges("max", histograms), dialect, dialect.rest)
    trial = MethodTrial(graph, lowest, beyond, channels, dialect.compiler != "cpu", dialect.exact_sums)
    tried = [name for names in trial.groups for name in names]
    fixed = fixed_batch(graph)
    parts = ((0, fixed), (fixed, 2 * fixed)) if fixed else (CHOOSING, CHECKING)
    choosing, checking = (samples.read_at(np.arange(*part) % len(samples)) for part in parts)
    best, choice = choose_by_outputs(trial, {method: ranges(method, tried) for method in METHODS}, choosing, checking)
    whole = dict.fromkeys(trial.by_channel, "max")  # whose channels have ranges that cut nothing
    judged = choice.amax.keys() | whole.keys()
    others = dict.fromkeys((name for name in histograms if name not in judged), best)  # for another compiler
    amax = ranges("max", whole) | ranges(best, others) | choice.amax
    return choice._replace(amax=amax, methods=whole | others | choice.methods)


def choose_by_outputs(
    trial: "MethodTrial", by_method: Mapping[str, Ranges], choosing: Feeds, checking: Feeds
) -> tuple[str, RangeChoice]:
    """Take the best method for all tensors, and then a better one for each tensor that has one. Return it, too.

    Those are tried first whose ranges differ most. What was chosen on some samples must prove itself on others. If it
    does not, the best method stays.
    """

    def ranges(methods: Mapping[str, str]) -> dict[str, float]:
        return {name: by_method[method][name] for name, method in methods.items()}

    cost, check = trial.on(choosing), trial.on(checking)
    lowest, best = min((cost(by_method[method]), method) for method in METHODS)
    methods = dict.fromkeys(by_method[best], best)
    for names, method in _most_different(trial.groups, by_method, best)[:TRIES]:
        changed = methods | dict.fromkeys(names, method)
        if (tried := cost(ranges(changed))) < (1 - WORTH_TAKING) * lowest:
            methods, lowest = changed, tried
    costs = {method: check(by_method[method]) for method in METHODS} | {AUTO: check(ranges(methods))}
    winner = min(costs, key=lambda method: costs[method])
    if winner != AUTO:
        best, methods, costs[AUTO] = winner, dict.fromkeys(methods, winner), costs[winner]
    return best, RangeChoice(ranges(methods), methods, costs)


def _most_different(
    groups: Sequence[Sequence[str]], by_method: Mapping[str, Ranges], best: str
) -> list[tuple[Sequence[str], str]]:
    """Return groups of tensors and methods, ordered by how far the range is from the best method's."""

    def difference(pair: tuple[Sequence[str], str]) -> float:
        names, method = pair
        tried, taken = (max(by_method[each][name] for name in names) for each in (method, best))
        return abs(math.log(max(tried, TINY) / max(taken, TINY)))

    pairs = [(names, method) for names in groups for method in METHODS]
    return sorted((pair for pair in pairs if difference(pair) > WORTH_TRYING), key=difference, reverse=True)


class Site(NamedTuple):
    """Tensors that are rounded alike, and the inputs that say how."""

    names: list[str]
    is_symmetric: bool  # the byte 0 stands for 0
    scale: str
    zero: str
    dtype: np.dtype[np.generic]  # of the scale


class MethodTrial:
    """A graph with rounded activations, whose grids are inputs."""

    def __init__(
        self,
        model: onnx.ModelProto,
        lowest: Mapping[str, float],
        kept: Collection[str] = (),
        channels: Mapping[str, NDArray[np.float32]] | None = None,
        is_symmetric: bool = False,
        exact_sums: bool = True,
    ) -> None:
        """Leave the nodes of the names in `kept` exact. `lowest` has the lowest value of each tensor, and `channels`
        the extremes of each channel of some, whose grids are no inputs. All others may have to be symmetric, as
        TensorRT's are."""
        writer = Writer(model, kept, exact_sums=exact_sums)
        self._lowest, self._sites = lowest, list[Site]()
        self.by_channel = {name: each for name, each in (channels or {}).items() if name in writer.by_channel}
        for group in writer.groups:
            names = names_of(group)
            if names[0] in self.by_channel:
                writer.round_activations(group, grid_of_channels(self.by_channel[names[0]].astype(np.float64)))
                continue
            grid = writer.round_activations(group, Grid(1.0, np.uint8(0)))
            scale, zero = (value.name or "" for value in grid)  # not the values, which keep the graph
            self._sites.append(Site(names, is_symmetric or writer.are_added(group), scale, zero, dtype_of(grid[0])))
            for value in grid:
                writer.model.graph.initializers.pop(value.name or "")
                value.const_value, value.shape = None, ir.Shape([])
                writer.model.graph.inputs.append(value)
        self._exact, self._rounded = open_optimized(model), open_optimized(ir.to_proto(writer.model))

    @property
    def groups(self) -> list[list[str]]:
        """Return the tensors that share a range, without those whose channels have ranges of their own."""
        return [site.names for site in self._sites]

    def on(self, feeds: Feeds) -> Cost:
        """Return what tells, for ranges, what they cost: the geometric mean of two relative errors of the outputs.

        The mean over samples knows nothing of how large an answer is, and the error of all samples at once is that of
        the few with the largest answers. So a share that one of them gains must not cost the other a larger share.
        """
        exact = self._exact.run(None, dict(feeds))

        def cost(amax: Ranges) -> float:
            outputs = self._rounded.run(None, dict(feeds) | dict(self._grids(amax)))
            return math.sqrt(math.prod(output_errors([outputs], [exact])))

        return cost

    def _grids(self, amax: Ranges) -> Iterator[tuple[str, NDArray[np.generic]]]:
        """Yield scales and zeros. A byte with a sign, whose zero is 0, is written as one without."""
        for site in self._sites:
            grid = grid_of((Bounds(self._lowest[name], amax[name]) for name in site.names), site.is_symmetric)
            yield site.scale, np.asarray(grid.scale, site.dtype)
            yield site.zero, np.asarray(SIGNED if grid.zero.dtype == np.int8 else grid.zero, np.uint8)


class OutputErrors(NamedTuple):
    """How far outputs are from the exact ones, relative to the size of these: means over outputs."""

    mean: float  # over samples
    at_once: float  # of all samples, which those with the largest answers decide


def output_errors(found: Batches, exact: Batches) -> OutputErrors:
    pairs = norms_of_outputs(found, exact)
    means = [np.mean(errors / np.maximum(sizes, TINY)) for errors, sizes in pairs]
    at_once = [relative_error(errors, sizes, TINY) for errors, sizes in pairs]
    return OutputErrors(float(np.mean(means)), float(np.mean(at_once)))


def norms_of_outputs(found: Batches, exact: Batches) -> list[NDArray[np.float64]]:
    """Return for each output the norms of the error and of the exact answer, for the samples of all batches."""

    def of_one(found: Values, exact: Values) -> NDArray[np.float64]:
        return np.stack([norms(each.astype(np.float64)) for each in (found - exact, exact)])

    parts = [[of_one(*pair) for pair in zip(*batch, strict=True)] for batch in zip(found, exact, strict=True)]
    return [np.concatenate(each, axis=1) for each in zip(*parts, strict=True)]

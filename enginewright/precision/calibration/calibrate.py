"""Calibrate a graph: measure its activations on samples, choose their ranges, and write both down."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from enginewright.core.cores import Cluster, Work, in_parallel, spread, working_threads
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.params.precisions import AUTO, CalibrationParams
from enginewright.core.progress import progress
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import AT_ONCE, Part, SampleSet, cut
from enginewright.graph.as_written import open_as_written
from enginewright.graph.files import graph_sha256
from enginewright.graph.onnx_file import fixed_batch, graph_inputs, load_graph
from enginewright.graph.shapes import shapes_for, with_shapes
from enginewright.precision.calibration.auto import choose_ranges
from enginewright.precision.calibration.cache import MEASURED, Calibration, channels_of, with_ranges, write_cache
from enginewright.precision.calibration.histogram import Histogram, choose_amax, counting_in_threads
from enginewright.precision.dialect import Dialect
from enginewright.precision.placement import tensors_by_channel
from enginewright.precision.write_int8 import Bounds

FLOATS = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16}  # what is measured
MOVES = {"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}  # what they return is what they read
MANY = 1 << 26  # bytes of a batch, for which PyTorch is worth a second of import: it counts twice as fast
COUNTERS = 2  # threads: more wait for each other, and take cores from the graph
MOST_BYTES = 1 << 30  # of a batch's activations, of which there are two: one is counted while the next is computed
FEW = 8  # samples whose activations are measured together anew

Arrays = dict[str, NDArray[np.float32]]


Histograms = dict[str, Histogram]


def calibrate_graph(
    source: Path,
    samples: SampleSet,
    params: CalibrationParams,
    dialect: Dialect,
    cluster: Cluster | None,
    calibrated: Path,
) -> Calibration:
    """Write the ranges of model.onnx in the folder `source`, and their origin. Return the origin."""
    model, cache = source / "model.onnx", calibrated / "calibration.cache"
    graph = load_graph(model)
    fixed = fixed_batch(graph)
    batch = fixed or batch_in_memory(graph, samples, params.batch)
    counted = measure_samples(Measuring(source, params.bins), samples, batch, bool(fixed), cluster)
    histograms = with_moved(graph, counted)
    choice = choose_ranges(graph, histograms, samples, params, dialect)
    write_cache(choice.amax, cache)
    record = Calibration(
        model_sha256=graph_sha256(model),
        samples_sha256=samples.list_sha256,
        preprocessing_sha256=samples.preprocessing_sha256,
        samples=len(samples),
        source=MEASURED,
        method=params.method,
        bins=params.bins,
        percentile=params.percentile,
        tools={module.__name__: module.__version__ for module in (np, onnx, onnxruntime)},
        cache_sha256=sha256(cache),
        amax=choice.amax,
        lowest={name: histogram.lowest for name, histogram in histograms.items()},
        channels=channels_of({name: histogram.channels for name, histogram in counted.items()}),
        methods=choice.methods,
        costs=choice.costs,
    )
    record.write(calibrated / "calibration.json")
    return record


def ranges_of_parts(
    known: Calibration, graph: onnx.ModelProto, samples: SampleSet, parts: Sequence[NDArray[np.int64]]
) -> list[Calibration]:
    """Return the ranges that each part of the samples reaches, as the methods that all have chosen find them."""
    fixed, meter, found = fixed_batch(graph), Meter(graph), []
    batch = fixed or batch_in_memory(graph, samples, FEW)
    for part in parts:
        places = samples.places(part, batch, whole=bool(fixed))
        measured = meter.measure((samples.read_at(part[each]) for each in places), known.bins)
        found.append(_ranges_of(known, with_moved(graph, measured)))
    return found


def _ranges_of(known: Calibration, histograms: Mapping[str, Histogram]) -> Calibration:
    found, usual = {}, "max" if known.method == AUTO else known.method
    for name, histogram in histograms.items():
        if name in known.amax:
            amax = choose_amax(histogram, known.methods.get(name, usual), known.percentile)
            channels = histogram.channels if name in known.channels else None
            found[name] = Bounds(histogram.lowest, amax, None if channels is None else channels.astype(np.float64))
    return with_ranges(known, found)


def write_scaled(known: Calibration, scaled: Mapping[str, Bounds], model: Path, samples: SampleSet) -> Calibration:
    """Write beside a graph what is known of the one it was made from, with the ranges of what was scaled."""
    record, cache = with_ranges(known, scaled), model.parent / "calibration.cache"
    write_cache(record.amax, cache)
    record = record.model_copy(update={"model_sha256": graph_sha256(model), "cache_sha256": sha256(cache)})
    record.write(model.parent / "calibration.json")
    return record


def measure_samples(
    work: "Measuring", samples: SampleSet, batch: int, whole: bool, cluster: Cluster | None, at_once: int = AT_ONCE
) -> Histograms:
    """Return a histogram of each activation of a graph.

    Parts of the samples are measured one by one, or side by side on a cluster, and merged in their order: the merging
    is exact, so that it does not matter how they are cut.
    """
    parts, merged = cut(samples, samples.places(np.arange(len(samples)), batch, whole), at_once), Histograms()
    for part in progress(spread(work, parts, cluster), "calibration", len(parts), f"parts of {at_once} samples"):
        for name, histogram in part.items():
            if name in merged:
                merged[name].merge(histogram)
            else:
                merged[name] = histogram
    return merged


def batch_in_memory(model: onnx.ModelProto, samples: SampleSet, most: int) -> int:
    """Return how many samples to measure at a time: as many as MOST_BYTES hold the activations of, but at least one."""
    longest, *_ = samples.places(np.arange(len(samples)), 1, whole=False)
    shapes = shapes_for(model, samples.read_at(longest))
    numbers = sum(math.prod(shapes.get(name, ())) for node in model.graph.node for name in node.output)
    return max(1, min(most, MOST_BYTES // (np.dtype(np.float32).itemsize * numbers)))


@dataclass(frozen=True)
class Measuring(Work[Part, Histograms]):
    """Measure the activations of the graph in a folder."""

    folder: Path
    bins: int

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[Part], Histograms]]:
        meter = Meter(load_graph(self.folder / "model.onnx"), threads)
        yield lambda part: meter.measure(part.feeds(), self.bins)


def measure(model: onnx.ModelProto, batches: Iterable[Feeds], bins: int) -> dict[str, Histogram]:
    return with_moved(model, Meter(model).measure(batches, bins))


def with_moved(model: onnx.ModelProto, histograms: dict[str, Histogram]) -> dict[str, Histogram]:
    """Return the histograms with those of tensors that hold another one's numbers in another shape or order."""
    moved = {name: histograms[source] for name, source in _moved(model.graph).items() if source in histograms}
    return moved | histograms


def _moved(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the tensors that hold what another one does, each with the first one that does."""
    sources: dict[str, str] = {}
    for node in graph.node:
        if node.op_type in MOVES and not node.domain:
            sources[node.output[0]] = sources.get(node.input[0], node.input[0])
    return sources


class Meter:
    """A graph that tells its activations in float32 or float16, but for those that hold what another one does."""

    def __init__(self, model: onnx.ModelProto, threads: int = 0) -> None:
        exposed = with_shapes(model)  # a copy, which also returns each activation to measure
        graph = exposed.graph
        hidden = {name for node in graph.node for name in node.output} - {output.name for output in graph.output}
        floats = [value for value in graph.value_info if value.type.tensor_type.elem_type in FLOATS.values()]
        shown = [value for value in floats if value.name in hidden]
        known = {value.name for value in [*graph_inputs(graph), *graph.output, *shown]}
        moved = {name for name, source in _moved(graph).items() if source in known}
        graph.output.extend(value for value in shown if value.name not in moved)
        self._cores = threads or working_threads()
        # Threads that wait by spinning would take the cores of those that count.
        self._session = open_as_written(exposed, threads, spins=False)
        self._names = [output.name for output in graph.output]
        self._by_channel = set(tensors_by_channel(model))

    def measure(self, batches: Iterable[Feeds], bins: int) -> Histograms:
        """Return a histogram of each activation, without keeping a batch."""
        found = Histograms()
        for activations in self._of_each(batches):
            self._count(activations, {name: found.setdefault(name, Histogram(bins)) for name in activations})
        return found

    def _count(self, activations: Arrays, histograms: Mapping[str, Histogram]) -> None:
        def add(name: str) -> None:
            try:
                histograms[name].add(activations[name], count)
                if name in self._by_channel and activations[name].size:
                    histograms[name].add_channels(activations[name])
            except ValueError as error:
                raise EnginewrightError(f"the activation {name} {error}; are the weights right?") from None

        many = sum(array.nbytes for array in activations.values()) > MANY
        with counting_in_threads() if many else nullcontext(np.bincount) as count:
            for _ in in_parallel(add, activations, min(COUNTERS, self._cores)) if many else map(add, activations):
                pass

    def _of_each(self, batches: Iterable[Feeds]) -> Iterator[Arrays]:
        """Yield the activations of each batch, while ONNX Runtime, on more than one thread, computes the next."""
        if self._cores == 1:
            yield from map(self._run, batches)
            return
        with ThreadPoolExecutor(max_workers=1) as pool:
            waiting: list[Future[Arrays]] = []
            for feeds in batches:
                waiting.append(pool.submit(self._run, feeds))
                if len(waiting) == 2:
                    yield waiting.pop(0).result()
            yield from (computed.result() for computed in waiting)

    def _run(self, feeds: Feeds) -> Arrays:
        inputs = {name: array for name, array in feeds.items() if array.dtype.name in FLOATS}
        arrays = inputs | dict(zip(self._names, self._session.run(self._names, dict(feeds)), strict=True))
        return {name: array.astype(np.float32, copy=False) for name, array in arrays.items()}

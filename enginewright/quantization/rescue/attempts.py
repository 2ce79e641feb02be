"""Make int8 of what was rescued, and make each rescue from what the earlier ones have left."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from enginewright.core.params.precisions import Keep
from enginewright.core.scratch import scratch_folder
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import open_as_written
from enginewright.graph.data_apart import in_memory
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.quantization.calibration.auto import error_of
from enginewright.quantization.calibration.calibrate import write_scaled
from enginewright.quantization.conversion import kept_nodes
from enginewright.quantization.dialect import Dialect
from enginewright.quantization.in_dialect import Ingredients, quantize_in_dialect, rewritten, value_ranges
from enginewright.quantization.placement import arithmetic_nodes
from enginewright.quantization.rescue.equalize import equalize
from enginewright.quantization.rescue.records import Rescued
from enginewright.quantization.rescue.rescue import Fitting
from enginewright.quantization.rescue.round import round_weights
from enginewright.quantization.rescue.spare import end_of
from enginewright.quantization.structure import nodes_beyond_int8
from enginewright.quantization.work import shares_of_work

SAME = 1e-4  # the largest relative error of a graph that computes the same in other steps


@dataclass(frozen=True)
class Attempts:
    precision: str
    keep: Keep
    wanted: Dialect
    samples: SampleSet
    folder: Path  # where the files of a new graph go

    def write(self, rescued: Rescued) -> onnx.ModelProto:
        """Return the graph in int8 as the stage convert makes it."""
        source, ranges, rounded, spared = rescued
        plain, sample = load_graph(source), self.samples.cycled(1)
        given = Ingredients(source, ranges, sample, self.wanted, self.keep, spared, rounded)
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
        if scaled is None or not _computes_the_same(graph, scaled.model, fitting.few[0]):
            return None
        model = self.folder / "model.onnx"
        save_graph(scaled.model, model)
        return Rescued(model, write_scaled(given.ranges, scaled.ranges, model, self.samples), {})

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

    def _kept(self, graph: onnx.ModelProto, given: Rescued) -> set[str]:
        return {*nodes_beyond_int8(graph, given.ranges.amax), *kept_nodes(self.keep, graph)}


def _computes_the_same(graph: onnx.ModelProto, scaled: onnx.ModelProto, feeds: Feeds) -> bool:
    """Tell whether only the last bits differ. In float16, those of scaled weights are too many."""
    exact, found = (open_as_written(each).run(None, dict(feeds)) for each in (graph, scaled))
    return bool(np.all([error_of(*pair) <= SAME for pair in zip(found, exact, strict=True)]))

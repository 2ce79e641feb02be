"""Make candidates: write their graphs as the stage convert does, build their engines, and check what they lose."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import onnx

from enginewright.graph.as_written import run_as_written
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.graph.onnx_file import save_graph
from enginewright.mixing.blocks import Parts
from enginewright.mixing.ways import Way
from enginewright.quantization.in_dialect import Ingredients
from enginewright.quantization.mixed import quantize_beside
from enginewright.search.checks import Checks

Build = Callable[[Path, Path], object]  # of a graph an engine, in this folder


class Made(NamedTuple):
    way: Way
    engine: Path
    used: float  # the largest part of what a threshold allows


@dataclass(frozen=True)
class Maker:
    int8: Ingredients
    parts: Parts
    boxes: BoxesInGraph
    checks: Checks
    build: Build

    def make(self, way: Way, folder: Path) -> Made:
        """Write and build a mix."""
        model, _ = quantize_beside(self.parts.floating(way), self.int8)
        return self.build_graph(model, way, folder)

    def build_graph(self, model: onnx.ModelProto, way: Way, folder: Path) -> Made:
        folder.mkdir()
        graph, engine = folder / "model.onnx", folder / "engine"
        save_graph(choose_in_graph(model, self.boxes), graph)
        self.build(graph, engine)
        return self.check(way, graph, engine)

    def check(self, way: Way, graph: Path, engine: Path) -> Made:
        """Say what is lost by a graph that is built already."""
        return Made(way, engine, self.checks.check_run(run_as_written(graph), 0, 0.0).used)

"""The background of the engines: parameters, simplification, calibration and tools."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import onnx

from enginewright.core.params.all import Params
from enginewright.engine.tools import Tools
from enginewright.graph.simplify import Simplification
from enginewright.quantization.calibration.provenance import Calibration
from enginewright.quantization.calibration.sketch import Histograms, Sketch
from enginewright.quantization.rescue.records import RESCUE, Rescue
from enginewright.search.records import SEARCH, Search

BULK = 0.999  # the share of magnitudes that counts as the bulk; outliers lie beyond it
RESHAPES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")  # these change no value


class Maker(NamedTuple):
    """The node that makes a tensor, and the first tensor that the node reads."""

    kind: str
    name: str
    reads: str | None

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


@dataclass(frozen=True)
class Background:
    params: Params
    simplification: Simplification
    calibration: Calibration
    histograms: Histograms
    tools: Tools
    makers: Mapping[str, Maker]
    rescues: Mapping[str, Rescue]  # by precision, as are searches
    searches: Mapping[str, Search]

    @property
    def drawn_tensors(self) -> list[str]:
        """The tensors whose histograms are drawn, those that lose most to quantization first."""
        # A tensor loses more the more of it is clipped, then the less of its range the bulk of its values fills.
        sketches = self.histograms.tensors
        drawn = [name for name in sketches if not self._repeats_another(name)]
        return sorted(drawn, key=lambda name: (-sketches[name].clipped, _filled_share(sketches[name])))

    def _repeats_another(self, name: str) -> bool:
        """Tell whether the tensor is only another shape of a tensor with the same range."""
        maker, amax = self.makers.get(name), self.calibration.amax
        if maker is None or maker.kind not in RESHAPES or maker.reads not in self.histograms.tensors:
            return False
        return amax[name] == amax[maker.reads]


def gather_background(params: Params, simplified: Path, calibrated: Path, converted: Path, tools: Path) -> Background:
    return Background(
        params,
        Simplification.read(simplified / "simplify.json"),
        Calibration.read(calibrated / "calibration.json"),
        Histograms.read(calibrated / "histograms.json"),
        Tools.read(tools),
        makers_of(onnx.load(simplified / "model.onnx", load_external_data=False).graph),
        {name: Rescue.read(found) for name in params.search if (found := converted / name / RESCUE).exists()},
        {name: Search.read(found) for name in params.search if (found := converted / name / SEARCH).exists()},
    )


def makers_of(graph: onnx.GraphProto) -> dict[str, Maker]:
    reads = ((node, node.input[0] if node.input else None) for node in graph.node)
    return {name: Maker(node.op_type, node.name, first) for node, first in reads for name in node.output}


def _filled_share(sketch: Sketch) -> float:
    """Return the share of the tensor's range that the bulk of its magnitudes fills."""
    total, seen = sum(sketch.counts), 0
    for number, count in enumerate(sketch.counts, start=1):
        seen += count
        if seen >= BULK * total:
            return number * sketch.width / (sketch.largest or 1)
    return 1.0

"""What was done before any engine was built, for whoever wants to see or repeat it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import onnx

from enginery.core.params.all import Params
from enginery.data.sample_set import SampleSet
from enginery.engine.tools import Tools
from enginery.graph.simplify import Simplification
from enginery.quantization.calibration.provenance import Calibration
from enginery.quantization.calibration.sketch import Histograms, Sketch

STRETCHED = 0.999  # of all magnitudes: how far the largest lies beyond these tells how much an outlier costs
RESHAPES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")  # what leaves each value as it is


class Maker(NamedTuple):
    """The node that makes a tensor, and the first tensor that it reads."""

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
    validation_sha256: str  # of the list of samples, as that of calibration
    makers: Mapping[str, Maker]

    @property
    def tensors(self) -> list[str]:
        """Those that were watched: first where most is clipped, then where the fewest values fill the range."""
        seen = self.histograms.tensors
        drawn = [name for name in seen if not self._is_drawn_already(name)]
        return sorted(drawn, key=lambda name: (-seen[name].clipped, _bulk(seen[name]) / (seen[name].largest or 1)))

    def _is_drawn_already(self, name: str) -> bool:
        """As what it is only another shape of, with the same range."""
        maker, amax = self.makers.get(name), self.calibration.amax
        if maker is None or maker.kind not in RESHAPES or maker.reads not in self.histograms.tensors:
            return False
        return amax[name] == amax[maker.reads]


def gather_background(params: Params, simplified: Path, calibrated: Path, tools: Path, samples: Path) -> Background:
    return Background(
        params,
        Simplification.read(simplified / "simplify.json"),
        Calibration.read(calibrated / "calibration.json"),
        Histograms.read(calibrated / "histograms.json"),
        Tools.read(tools),
        SampleSet.open(samples).list_sha256,
        makers_of(onnx.load(simplified / "model.onnx").graph),
    )


def makers_of(graph: onnx.GraphProto) -> dict[str, Maker]:
    return {
        name: Maker(node.op_type, node.name, node.input[0] if node.input else None)
        for node in graph.node
        for name in node.output
    }


def _bulk(sketch: Sketch) -> float:
    """The magnitude below which nearly all lie."""
    total, seen = sum(sketch.counts), 0
    for number, count in enumerate(sketch.counts, start=1):
        seen += count
        if seen >= STRETCHED * total:
            return number * sketch.width
    return sketch.largest

"""What was done before any engine was built, for whoever wants to see or repeat it."""

from dataclasses import dataclass
from pathlib import Path

from enginery.core.params import Params
from enginery.core.records import Calibration, Histograms, Simplification, Sketch, Tools

STRETCHED = 0.999  # of all magnitudes: how far the largest lies beyond these tells how much an outlier costs


@dataclass(frozen=True)
class Background:
    params: Params
    simplification: Simplification
    calibration: Calibration
    histograms: Histograms
    tools: Tools

    @property
    def tensors(self) -> list[str]:
        """Those that were watched: first where most is clipped, then where the fewest values fill the range."""
        seen = self.histograms.tensors
        return sorted(seen, key=lambda name: (-seen[name].clipped, _bulk(seen[name]) / (seen[name].largest or 1)))


def gather_background(params: Params, simplified: Path, calibrated: Path, tools: Path) -> Background:
    return Background(
        params,
        Simplification.read(simplified),
        Calibration.read(calibrated / "calibration.json"),
        Histograms.read(calibrated / "histograms.json"),
        Tools.read(tools),
    )


def _bulk(sketch: Sketch) -> float:
    """The magnitude below which nearly all lie."""
    total, seen = sum(sketch.counts), 0
    for number, count in enumerate(sketch.counts, start=1):
        seen += count
        if seen >= STRETCHED * total:
            return number * sketch.width
    return sketch.largest

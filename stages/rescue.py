"""Make int8 closer to the exact graph, before a search: by scaled channels, and by weights rounded to what follows."""

import shutil
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_folder, scratch_folder
from enginewright.core.params.precisions import CalibrationParams, PrecisionParams, rescues_of
from enginewright.data.sample_set import SampleSet
from enginewright.graph.onnx_file import load_graph
from enginewright.precision.dialect import Dialect
from enginewright.precision.floats import require_kept_exist
from enginewright.precision.rescue.records import RESCUE, open_calibrated, write_rounded
from enginewright.precision.rescue.rescue import BATCH, Attempts, Trial, find_rescues


def rescue(precision: str, simplified: Path, calibrated: Path, calibration: Path, dialect: Path, rescued: Path) -> None:
    """Write what was tried; and, if it was kept, the graph with its ranges, and the weights that are rounded."""
    asked, keep = PrecisionParams.read_for(precision).rescue, PrecisionParams.read_for(precision).keep
    samples = SampleSet.open(calibration)
    given = open_calibrated(simplified, calibrated, samples)
    if not len(samples):
        raise EnginewrightError(
            f"precisions.{precision}.rescue needs calibration samples, and samples.calibration is 0"
        )
    exact = load_graph(given.graph)
    require_kept_exist(keep, exact)
    with new_folder(rescued) as unfinished, scratch_folder() as scratch:
        attempts = Attempts(precision, keep, Dialect.read(dialect), samples, scratch)
        by_name = {name: getattr(attempts, name) for name in rescues_of(asked)}
        trial = Trial(exact, samples, min(BATCH, CalibrationParams.read().batch))
        found = find_rescues(precision, given, by_name, asked != "auto", trial, attempts.write)
        found.record.write(unfinished / RESCUE)
        if found.rescued.graph.parent == attempts.folder:
            for file in attempts.folder.iterdir():
                shutil.copyfile(file, unfinished / file.name)
        if found.rescued.rounded:
            write_rounded(found.rescued.rounded, unfinished)
    print(f"{precision}: {found.record.in_words()}")

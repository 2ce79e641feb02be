"""Find the range of each activation on real samples, or take a calibration cache from elsewhere."""

from pathlib import Path

from enginewright.core.files import new_folder
from enginewright.core.params.precisions import CalibrationParams
from enginewright.core.user_files import user_calibration
from enginewright.data.sample_set import SampleSet
from enginewright.precision.calibration.cache import provided_provenance, read_cache, write_cache
from enginewright.precision.calibration.calibrate import calibrate_graph
from enginewright.precision.calibration.histogram import Histograms
from enginewright.precision.dialect import Dialect
from enginewright.targets.ray_cluster import open_cluster


def calibrate(data: Path, simplified: Path, calibration: Path, dialect: Path, calibrated: Path) -> None:
    """Write calibration.cache in TensorRT's format, its origin in calibration.json, and histograms.json."""
    params = CalibrationParams.read()
    with new_folder(calibrated) as unfinished:
        if params.file:
            amax, cache = read_cache(user_calibration(params.file, data)), unfinished / "calibration.cache"
            write_cache(amax, cache)
            record = provided_provenance(params, cache, amax)
            record.write(unfinished / "calibration.json")
            Histograms(tensors={}).write(unfinished / "histograms.json")
        else:
            with open_cluster() as cluster:
                samples, wanted = SampleSet.open(calibration), Dialect.read(dialect)
                record = calibrate_graph(simplified, samples, params, wanted, cluster, unfinished)
    if params.file:
        print(f"MIND: calibration.file gives the ranges, so that calibration.method: {params.method} chooses none")
    print(f"{len(record.amax)} tensors, {record.source}, method {record.method}")
    if record.costs:
        errors = ", ".join(f"{method} {cost:.4f}" for method, cost in record.costs.items())
        print(f"relative error of the outputs with rounded activations: {errors}")

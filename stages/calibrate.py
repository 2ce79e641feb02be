"""Find the range of each activation on real samples, or take a calibration cache from elsewhere."""

from pathlib import Path

from enginewright.cluster.ray_cluster import open_cluster
from enginewright.core.files import new_folder
from enginewright.core.params.calibration import CalibrationParams
from enginewright.core.user_files import user_calibration
from enginewright.data.sample_set import SampleSet
from enginewright.quantization.calibration.cache import read_cache, write_cache
from enginewright.quantization.calibration.calibrate import calibrate_graph
from enginewright.quantization.calibration.provenance import provided_provenance
from enginewright.quantization.calibration.sketch import Histograms
from enginewright.quantization.dialect import Dialect


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

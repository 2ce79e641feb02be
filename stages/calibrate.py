"""Find the range of each activation on real samples, or take a calibration cache from elsewhere."""

from pathlib import Path

from enginery.calibration.cache import read_cache, write_cache
from enginery.calibration.measure import measure
from enginery.calibration.provenance import measured_provenance, provided_provenance
from enginery.calibration.sketch import sketch
from enginery.calibration.thresholds import choose_amax
from enginery.core.brought import brought_ranges
from enginery.core.files import new_folder
from enginery.core.params import CalibrationParams, load_params
from enginery.core.progress import progress
from enginery.core.records import Histograms, Sketch
from enginery.core.stage import run_stage
from enginery.graphs import fixed_batch, load_graph
from enginery.samples import SampleSet


def calibrate(data: Path, simplified: Path, calibration: Path, calibrated: Path) -> None:
    """Write calibration.cache, in TensorRT's format; calibration.json, its origin; histograms.json, what was seen."""
    params = load_params().calibration
    model, samples = simplified / "model.onnx", SampleSet.open(calibration)
    seen: dict[str, Sketch] = {}
    with new_folder(calibrated) as unfinished:
        cache = unfinished / "calibration.cache"
        if params.file:
            amax = read_cache(brought_ranges(params.file, data))
            write_cache(amax, cache)
            record = provided_provenance(params, cache, amax)
        else:
            amax, seen = find_ranges(model, samples, params)
            write_cache(amax, cache)
            record = measured_provenance(params, model, samples, cache, amax)
        record.write(unfinished / "calibration.json")
        Histograms(tensors=seen).write(unfinished / "histograms.json")
    print(f"{len(amax)} tensors, {record.source}, method {record.method}")


def find_ranges(
    model: Path, samples: SampleSet, params: CalibrationParams
) -> tuple[dict[str, float], dict[str, Sketch]]:
    graph = load_graph(model)
    fixed = fixed_batch(graph)
    batch = fixed or params.batch
    batches = progress(samples.batches(batch, whole=bool(fixed)), "calibration", -(-len(samples) // batch), "batches")
    histograms = measure(graph, batches, params.bins)
    amax = {name: choose_amax(histogram, params) for name, histogram in histograms.items()}
    return amax, {name: sketch(histogram, amax[name]) for name, histogram in histograms.items()}


if __name__ == "__main__":
    run_stage(calibrate)

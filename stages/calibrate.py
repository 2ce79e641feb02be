"""Find the range of each activation on real samples, or take a calibration cache from elsewhere."""

from pathlib import Path

from enginery.core.files import new_folder
from enginery.core.params.calibration import CalibrationParams
from enginery.core.progress import progress
from enginery.core.user_files import user_calibration
from enginery.data.sample_set import SampleSet
from enginery.graph.onnx_file import fixed_batch, load_graph
from enginery.quantization.calibration.cache import read_cache, write_cache
from enginery.quantization.calibration.measure import measure
from enginery.quantization.calibration.provenance import measured_provenance, provided_provenance
from enginery.quantization.calibration.sketch import Histograms, Sketch, sketch
from enginery.quantization.calibration.thresholds import choose_amax


def calibrate(data: Path, simplified: Path, calibration: Path, calibrated: Path) -> None:
    """Write calibration.cache in TensorRT's format, its origin in calibration.json, and histograms.json."""
    params = CalibrationParams.read()
    model, samples = simplified / "model.onnx", SampleSet.open(calibration)
    sketches: dict[str, Sketch] = {}
    with new_folder(calibrated) as unfinished:
        cache = unfinished / "calibration.cache"
        if params.file:
            amax = read_cache(user_calibration(params.file, data))
            write_cache(amax, cache)
            record = provided_provenance(params, cache, amax)
        else:
            amax, sketches = find_ranges(model, samples, params)
            write_cache(amax, cache)
            record = measured_provenance(params, model, samples, cache, amax)
        record.write(unfinished / "calibration.json")
        Histograms(tensors=sketches).write(unfinished / "histograms.json")
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

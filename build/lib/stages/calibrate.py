"""Find the range of each activation on real samples, or take a calibration cache from elsewhere."""

from pathlib import Path

from enginery.cluster.ray_cluster import open_cluster
from enginery.core.files import new_folder
from enginery.core.params.calibration import CalibrationParams
from enginery.core.user_files import user_calibration
from enginery.data.sample_set import SampleSet
from enginery.graph.onnx_file import fixed_batch, load_graph
from enginery.quantization.calibration.auto import choose_ranges
from enginery.quantization.calibration.cache import read_cache, write_cache
from enginery.quantization.calibration.measure import measure_samples
from enginery.quantization.calibration.provenance import measured_provenance, provided_provenance
from enginery.quantization.calibration.sketch import Histograms, Sketch, sketch


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
            graph = load_graph(model)
            fixed = fixed_batch(graph)
            with open_cluster() as cluster:
                histograms = measure_samples(
                    simplified, samples, fixed or params.batch, bool(fixed), params.bins, cluster
                )
            choice = choose_ranges(graph, histograms, samples, params)
            amax = choice.amax
            sketches = {name: sketch(histogram, amax[name]) for name, histogram in histograms.items()}
            write_cache(amax, cache)
            record = measured_provenance(
                params,
                model,
                samples,
                cache,
                amax,
                lowest={name: histogram.lowest for name, histogram in histograms.items()},
                methods=choice.methods,
                costs=choice.costs,
            )
        record.write(unfinished / "calibration.json")
        Histograms(tensors=sketches).write(unfinished / "histograms.json")
    print(f"{len(amax)} tensors, {record.source}, method {record.method}")
    if record.costs:
        errors = ", ".join(f"{method} {cost:.4f}" for method, cost in record.costs.items())
        print(f"relative error of the outputs with rounded activations: {errors}")

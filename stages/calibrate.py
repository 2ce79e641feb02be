"""Find the range of each activation on real samples, or take a calibration cache from elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np

from enginery.core.files import new_folder
from enginery.core.params.calibration import AUTO, METHODS, CalibrationParams
from enginery.core.progress import progress
from enginery.core.user_files import user_calibration
from enginery.data.sample_set import SampleSet
from enginery.graph.onnx_file import fixed_batch, load_graph
from enginery.quantization.calibration.auto import choose_by_outputs
from enginery.quantization.calibration.cache import read_cache, write_cache
from enginery.quantization.calibration.histogram import Histogram
from enginery.quantization.calibration.measure import measure
from enginery.quantization.calibration.provenance import measured_provenance, provided_provenance
from enginery.quantization.calibration.sketch import Histograms, Sketch, sketch
from enginery.quantization.calibration.thresholds import choose_amax

CHOOSING, CHECKING = (0, 8), (8, 40)  # the samples that `auto` chooses by, and those that must confirm it


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
            histograms, amax, chosen = find_ranges(model, samples, params)
            sketches = {name: sketch(histogram, amax[name]) for name, histogram in histograms.items()}
            write_cache(amax, cache)
            never = tuple(name for name, histogram in histograms.items() if not histogram.is_ever_negative)
            record = measured_provenance(params, model, samples, cache, amax, never_negative=never, **chosen)
        record.write(unfinished / "calibration.json")
        Histograms(tensors=sketches).write(unfinished / "histograms.json")
    print(f"{len(amax)} tensors, {record.source}, method {record.method}")
    if record.costs:
        errors = ", ".join(f"{method} {cost:.4f}" for method, cost in record.costs.items())
        print(f"relative error of the outputs with rounded activations: {errors}")


def find_ranges(
    model: Path, samples: SampleSet, params: CalibrationParams
) -> tuple[dict[str, Histogram], dict[str, float], dict[str, Any]]:
    """Return the histogram and the range of each tensor, and how `auto` chose."""
    graph = load_graph(model)
    fixed = fixed_batch(graph)
    batch = fixed or params.batch
    batches = progress(samples.batches(batch, whole=bool(fixed)), "calibration", -(-len(samples) // batch), "batches")
    histograms = measure(graph, batches, params.bins)
    methods: tuple[str, ...] = METHODS if params.method == AUTO else (params.method,)
    amax = {
        method: {
            name: choose_amax(each, params.model_copy(update={"method": method})) for name, each in histograms.items()
        }
        for method in methods
    }
    if params.method != AUTO:
        return histograms, amax[params.method], {}
    parts = ((0, fixed), (fixed, 2 * fixed)) if fixed else (CHOOSING, CHECKING)
    choosing, checking = (samples.read_at(np.arange(*part) % len(samples)) for part in parts)
    choice = choose_by_outputs(graph, amax, choosing, checking, tries=len(samples) // parts[0][1])
    return histograms, choice.amax, {"methods": choice.methods, "costs": choice.costs}

"""Calibrate a graph: measure its activations on samples, choose their ranges, and write both down."""

from pathlib import Path

from enginery.cluster.spread import Cluster
from enginery.core.params.calibration import CalibrationParams
from enginery.data.sample_set import SampleSet
from enginery.graph.onnx_file import fixed_batch, load_graph
from enginery.quantization.calibration.answers import keep_answers
from enginery.quantization.calibration.auto import choose_ranges
from enginery.quantization.calibration.cache import write_cache
from enginery.quantization.calibration.measure import batch_in_memory, measure_samples
from enginery.quantization.calibration.provenance import Calibration, measured_provenance
from enginery.quantization.calibration.sketch import Histograms, sketch


def calibrate_graph(
    source: Path, samples: SampleSet, params: CalibrationParams, cluster: Cluster | None, calibrated: Path
) -> Calibration:
    """Write the ranges of model.onnx in the folder `source`, their origin, and the histograms. Return the origin."""
    model = source / "model.onnx"
    graph = load_graph(model)
    fixed = fixed_batch(graph)
    batch = fixed or batch_in_memory(graph, samples, params.batch)
    histograms, answers = measure_samples(source, samples, batch, bool(fixed), params.bins, cluster)
    choice = choose_ranges(graph, histograms, samples, params)
    cache = calibrated / "calibration.cache"
    write_cache(choice.amax, cache)
    record = measured_provenance(
        params,
        model,
        samples,
        cache,
        choice.amax,
        lowest={name: histogram.lowest for name, histogram in histograms.items()},
        methods=choice.methods,
        costs=choice.costs,
    )
    keep_answers(record, samples, answers)
    record.write(calibrated / "calibration.json")
    sketches = {name: sketch(histogram, choice.amax[name]) for name, histogram in histograms.items()}
    Histograms(tensors=sketches).write(calibrated / "histograms.json")
    return record

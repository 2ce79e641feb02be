"""Calibrate a graph: measure its activations on samples, choose their ranges, and write both down."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from enginewright.core.cores import Cluster
from enginewright.core.files import sha256
from enginewright.core.params.precisions import AUTO, CalibrationParams
from enginewright.data.sample_set import SampleSet
from enginewright.graph.files import graph_sha256
from enginewright.graph.onnx_file import fixed_batch, load_graph
from enginewright.precision.calibration.auto import choose_ranges
from enginewright.precision.calibration.cache import (
    Calibration,
    Channels,
    keep_answers,
    kept_answers,
    measured_provenance,
    write_cache,
)
from enginewright.precision.calibration.histogram import Histograms, choose_amax, sketch
from enginewright.precision.calibration.measure import (
    Measuring,
    batch_in_memory,
    measure,
    measure_samples,
    with_moved,
)
from enginewright.precision.dialect import Dialect
from enginewright.precision.write_int8 import Bounds

AT_ONCE = 8  # samples whose activations are measured together anew


def calibrate_graph(
    source: Path,
    samples: SampleSet,
    params: CalibrationParams,
    dialect: Dialect,
    cluster: Cluster | None,
    calibrated: Path,
) -> Calibration:
    """Write the ranges of model.onnx in the folder `source`, their origin, and the histograms. Return the origin."""
    model = source / "model.onnx"
    graph = load_graph(model)
    fixed = fixed_batch(graph)
    batch = fixed or batch_in_memory(graph, samples, params.batch)
    counted, answers = measure_samples(Measuring(source, params.bins), samples, batch, bool(fixed), cluster)
    histograms = with_moved(graph, counted)
    choice = choose_ranges(graph, histograms, samples, params, dialect)
    cache = calibrated / "calibration.cache"
    write_cache(choice.amax, cache)
    record = measured_provenance(
        params,
        model,
        samples,
        cache,
        choice.amax,
        lowest={name: histogram.lowest for name, histogram in histograms.items()},
        channels=_channels({name: histogram.channels for name, histogram in counted.items()}),
        methods=choice.methods,
        costs=choice.costs,
    )
    keep_answers(record, samples, answers)
    record.write(calibrated / "calibration.json")
    sketches = {name: sketch(histogram, choice.amax[name]) for name, histogram in histograms.items()}
    Histograms(tensors=sketches).write(calibrated / "histograms.json")
    return record


def ranges_by(known: Calibration, graph: onnx.ModelProto, samples: SampleSet, chosen: NDArray[np.int64]) -> Calibration:
    """Return the ranges of a graph by some of the samples, as the methods that were chosen by all of them find them."""
    fixed = fixed_batch(graph)
    places = samples.places(chosen, fixed or batch_in_memory(graph, samples, AT_ONCE), whole=bool(fixed))
    histograms = measure(graph, (samples.read_at(chosen[each]) for each in places), known.bins)

    def amax(name: str) -> float:
        method = known.methods.get(name, "max" if known.method == AUTO else known.method)
        by = {"method": method, "percentile": known.percentile, "bins": known.bins, "batch": 1, "file": None}
        return choose_amax(histograms[name], CalibrationParams.model_validate(by))

    found = [name for name in known.amax if name in histograms]
    channels = {name: histograms[name].channels for name in known.channels if name in histograms}
    return known.model_copy(
        update={
            "amax": known.amax | {name: amax(name) for name in found},
            "lowest": known.lowest | {name: histograms[name].lowest for name in found},
            "channels": known.channels | _channels(channels),
        }
    )


def _channels(found: Mapping[str, NDArray[np.floating] | None]) -> dict[str, Channels]:
    """Return the extremes of channels, where they are known, with as many digits as bytes need."""

    def rounded(values: NDArray[np.floating]) -> tuple[float, ...]:
        return tuple(float(f"{value:.4g}") for value in values)

    return {name: (rounded(each[0]), rounded(each[1])) for name, each in found.items() if each is not None}


def write_scaled(known: Calibration, scaled: Mapping[str, Bounds], model: Path, samples: SampleSet) -> Calibration:
    """Write beside a graph what is known of the one it was made from, with the ranges of what was scaled."""
    amax = known.amax | {name: each.amax for name, each in scaled.items()}
    lowest = known.lowest | {name: each.lowest for name, each in scaled.items()}
    cache = model.parent / "calibration.cache"
    write_cache(amax, cache)
    origin = {"model_sha256": graph_sha256(model), "cache_sha256": sha256(cache)}
    channels = known.channels | _channels({name: each.channels for name, each in scaled.items()})
    record = known.model_copy(update={"amax": amax, "lowest": lowest, "channels": channels, **origin})
    if answers := kept_answers(known, samples):  # which scaling leaves as they are
        keep_answers(record, samples, [answers])
    record.write(model.parent / "calibration.json")
    return record

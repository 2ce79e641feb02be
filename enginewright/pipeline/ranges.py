"""The graph that all precisions are made of, and the ranges of its activations."""

from pathlib import Path
from tempfile import TemporaryDirectory

from enginewright.core.files import new_folder
from enginewright.core.params.all import Params
from enginewright.core.user_files import user_calibration
from enginewright.data.sample_set import SampleSet, checked_feeds
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.data_apart import is_large
from enginewright.graph.files import graph_bytes
from enginewright.graph.onnx_file import check_at_each_size, count_nodes, load_graph, save_graph
from enginewright.graph.passes import rewrite_graph
from enginewright.graph.simplify import (
    SIMPLIFY_LIMIT,
    Simplification,
    fold_constants,
    simplify_graph,
    simplify_large_graph,
)
from enginewright.precision.calibration.cache import provided_provenance, read_cache, write_cache
from enginewright.precision.calibration.calibrate import calibrate_graph
from enginewright.precision.dialect import Dialect
from enginewright.targets.ray_cluster import open_cluster


def simplify(params: Params, exported: Path, validation: Path, simplified: Path) -> None:
    """Write model.onnx, and what was removed to simplify.json."""
    source = exported / "model.onnx"
    before = load_graph(source)
    checked = checked_feeds(SampleSet.open(validation), params.build.profile)
    with new_folder(simplified) as unfinished:
        target = unfinished / "model.onnx"
        with TemporaryDirectory(dir=unfinished) as scratch:
            made = simplify_large_graph(source, Path(scratch)) if is_large(before) else simplify_graph(before)
            after = rewrite_graph(fold_constants(made))
            save_graph(after, target)
        runs = open_as_written(source), open_as_written(target)
        expected, got = ([run_graph(run, feeds) for feeds in checked] for run in runs)
        failure = "the simplified graph does not compute what the exported one computes"
        record = Simplification(
            nodes_before=count_nodes(before),
            nodes_after=count_nodes(after),
            bytes_before=graph_bytes(source),
            bytes_after=graph_bytes(target),
            against_exported=check_at_each_size(expected, got, SIMPLIFY_LIMIT, failure),
        )
        record.write(unfinished / "simplify.json")
    print(f"{len(before.graph.node)} nodes became {len(after.graph.node)}")


def calibrate(params: Params, data: Path, simplified: Path, calibration: Path, dialect: Path, calibrated: Path) -> None:
    """Write calibration.cache in TensorRT's format, and its origin in calibration.json."""
    asked = params.calibration
    with new_folder(calibrated) as unfinished:
        if asked.file:
            amax, cache = read_cache(user_calibration(asked.file, data)), unfinished / "calibration.cache"
            write_cache(amax, cache)
            record = provided_provenance(asked, cache, amax)
            record.write(unfinished / "calibration.json")
        else:
            with open_cluster(params.cluster) as cluster:
                given = SampleSet.open(calibration), asked, Dialect.read(dialect)
                record = calibrate_graph(simplified, *given, cluster, unfinished)
    if asked.file:
        print(f"MIND: calibration.file gives the ranges, so that calibration.method: {asked.method} chooses none")
    print(f"{len(record.amax)} tensors, {record.source}, method {record.method}")
    if record.costs:
        errors = ", ".join(f"{method} {cost:.4f}" for method, cost in record.costs.items())
        print(f"relative error of the outputs with rounded activations: {errors}")

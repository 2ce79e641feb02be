"""The graph that all precisions are made of, the ranges of its activations, and both after a rescue."""

import math
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.files import new_folder, scratch_folder
from enginewright.core.params.all import Params
from enginewright.core.params.precisions import rescues_of
from enginewright.core.user_files import user_calibration
from enginewright.data.feeds import save_arrays
from enginewright.data.sample_set import SampleSet, checked_feeds
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.data_apart import is_large, with_bodies
from enginewright.graph.files import copy_graph, graph_bytes
from enginewright.graph.onnx_file import check_at_each_size, count_nodes, load_graph, save_graph
from enginewright.graph.passes import changed_by, rewrite_graph
from enginewright.graph.simplify import (
    SIMPLIFY_LIMIT,
    Simplification,
    fold_constants,
    simplify_graph,
    simplify_large_graph,
)
from enginewright.precision import in_dialect
from enginewright.precision.calibration.cache import provided_provenance, read_cache, write_cache
from enginewright.precision.calibration.calibrate import calibrate_graph
from enginewright.precision.dialect import Dialect
from enginewright.precision.floats import require_kept_exist
from enginewright.precision.given import take_out_rounding
from enginewright.precision.records import RESCUE, ROUNDED
from enginewright.precision.rescue import BATCH, Attempts, Confirmation, find_rescues
from enginewright.targets.ray_cluster import open_cluster


def simplify(params: Params, exported: Path, validation: Path, simplified: Path, given: Path) -> None:
    """Write model.onnx, and what was removed to simplify.json. Of a model that is quantized already, model.onnx has no
    Q/DQ nodes, and the folder `given` holds the graph with them."""
    source = exported / "model.onnx"
    before = load_graph(source)
    checked = checked_feeds(SampleSet.open(validation), params.build.profile)
    with new_folder(simplified) as unfinished, new_folder(given) as beside:
        target = unfinished / "model.onnx"
        after = _simplify(before, source, target)
        runs = [open_as_written(source), open_as_written(target)]
        rounds = any(node.op_type == "DequantizeLinear" for each in with_bodies(after.graph) for node in each.node)
        # Files are read again where weights apart from a graph have moved.
        if rounds and (floats := changed_by(load_graph(target), take_out_rounding)) is not None:
            copy_graph(target, beside)
            save_graph(floats, target)
            after = _simplify(load_graph(target), target, target)
            runs.append(open_as_written(target))
        expected, got, *in_floats = ([run_graph(run, feeds) for feeds in checked] for run in runs)
        failure = "the simplified graph does not compute what the exported one computes"
        record = Simplification(
            nodes_before=count_nodes(before),
            nodes_after=count_nodes(after),
            bytes_before=graph_bytes(source),
            bytes_after=graph_bytes(target),
            against_exported=check_at_each_size(expected, got, SIMPLIFY_LIMIT, failure),
        )
        record.write(unfinished / "simplify.json")
        record.write(beside / "simplify.json")  # as DVC warns of a folder that is empty
    for answers in in_floats:
        cost = check_at_each_size(expected, answers, math.inf, "the graph without Q/DQ nodes").relative_error
        print(
            f"MIND: the model is quantized already. Without its Q/DQ nodes it has a relative error of {cost:.2e} to "
            "itself as given, which is the reference: set thresholds accordingly"
        )
    print(f"{len(before.graph.node)} nodes became {len(after.graph.node)}")


def _simplify(before: onnx.ModelProto, source: Path, target: Path) -> onnx.ModelProto:
    """Simplify a graph, which the file `source` has as well, into another file. Return it."""
    with TemporaryDirectory(dir=target.parent) as scratch:
        made = simplify_large_graph(source, Path(scratch)) if is_large(before) else simplify_graph(before)
        after = rewrite_graph(fold_constants(made))
        save_graph(after, target)
    return after


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


class RescuePaths(NamedTuple):
    simplified: Path
    calibrated: Path
    calibration: Path
    dialect: Path
    rescued: Path


def rescue(params: Params, precision: PrecisionName, paths: RescuePaths) -> None:
    """Write what was tried; and, if it was kept, the graph with its ranges, and the weights that are rounded."""
    asked, keep = params.precisions[precision].rescue, params.precisions[precision].keep
    samples = SampleSet.open(paths.calibration)
    given = in_dialect.open_calibrated(paths.simplified, paths.calibrated, samples, Dialect.read(paths.dialect), keep)
    if not len(samples):
        place = f"precisions.{precision}.rescue"
        raise EnginewrightError(f"{place} needs calibration samples, and samples.calibration is 0")
    exact = load_graph(given.graph)
    require_kept_exist(keep, exact)
    with new_folder(paths.rescued) as unfinished, scratch_folder() as scratch:
        attempts = Attempts(precision, samples, scratch)
        by_name = {name: getattr(attempts, name) for name in rescues_of(asked)}
        trial = Confirmation(exact, samples, min(BATCH, params.calibration.batch))
        record, best = find_rescues(precision, given, by_name, asked != "auto", trial, attempts.write)
        record.write(unfinished / RESCUE)
        if best.graph.parent == attempts.folder:
            for file in attempts.folder.iterdir():
                shutil.copyfile(file, unfinished / file.name)
        if best.rounded:
            save_arrays(unfinished / ROUNDED, best.rounded)
    print(f"{precision}: {record.in_words()}")

"""Find the layers that must stay in floating point, so that a precision keeps its thresholds."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

import onnx

from enginery.cluster.ray_cluster import open_cluster
from enginery.core.errors import EngineryError
from enginery.core.files import sha256
from enginery.core.params.boxes import BoxesParams
from enginery.core.params.model import ModelParams
from enginery.core.params.precisions import PrecisionParams
from enginery.core.params.search import SearchParams
from enginery.core.precisions import PRECISIONS
from enginery.core.scratch import scratch_folder
from enginery.data.feeds import Run
from enginery.data.sample_set import MANIFEST, SampleSet
from enginery.graph.as_written import open_as_written, run_graph
from enginery.graph.files import graph_sha256
from enginery.graph.onnx_file import load_graph
from enginery.quantization.calibration.provenance import require_tensors
from enginery.quantization.conversion import kept_nodes, require_kept_exist
from enginery.quantization.dialect import Dialect
from enginery.quantization.in_dialect import (
    Ingredients,
    is_written_here,
    nodes_in_floats,
    quantize_in_dialect,
    rewritten,
    value_ranges,
)
from enginery.quantization.modelopt import named_sizes
from enginery.quantization.rescue.records import digest_of, digests_of, open_rescued
from enginery.quantization.write_int8 import tensors_in_int8
from enginery.search.in_words import in_words
from enginery.search.journal import Journal
from enginery.search.on_cluster import OnCluster, Rounding
from enginery.search.records import Layer, Search
from enginery.search.search import find_spared
from enginery.search.switches import SwitchedGraph
from enginery.search.trial import Trial
from enginery.search.work import shares_of_work
from enginery.tasks.choose import task_of


def search(
    precision: str,
    simplified: Path,
    calibrated: Path,
    rescued: Path,
    calibration: Path,
    dialect: Path,
    code: Path,
    found: Path,
) -> None:
    """Write which layers are spared, what each loses alone, and which sets were tried."""
    keep, limits = PrecisionParams.read_for(precision).keep, PrecisionParams.read_for(precision).thresholds
    wanted, seconds = Dialect.read(dialect), SearchParams.read_for(precision).seconds
    samples = SampleSet.open(calibration)
    source, ranges, rounded = open_rescued(simplified, calibrated, rescued, samples)
    if not len(samples):
        raise EngineryError(f"search.{precision} tries layers on calibration samples, and samples.calibration is 0")
    plain = load_graph(source)
    sizes = named_sizes(plain, samples.cycled(1))
    require_kept_exist(keep, plain)
    graph = rewritten(plain, wanted, precision) or plain
    kept = {*nodes_in_floats(precision, graph, ranges.amax, wanted), *kept_nodes(keep, graph)}
    require_tensors(ranges, tensors_in_int8(graph, kept))
    largest = wanted.largest_weight if precision == "int8" else PRECISIONS[precision].largest
    rounding = Rounding(value_ranges(ranges), frozenset(kept), largest, rounded, precision)
    switched = SwitchedGraph(graph, *rounding)
    given = Ingredients(source, ranges, sizes, wanted, keep, rounded=rounded)

    def converted(spared: Collection[str]) -> onnx.ModelProto:
        made, _ = quantize_in_dialect(precision, given._replace(spared=spared))
        return made

    def run_converted(spared: Collection[str]) -> Run:
        return partial(run_graph, open_as_written(converted(spared)))

    scores, boxes, known = ModelParams.read().scores, BoxesParams.read(), samples.manifest
    task = task_of(known.task, scores, known.class_names, boxes, known.preprocessing)
    files = graph_sha256(source), ranges.cache_sha256, sha256(calibration / MANIFEST), sha256(code)
    choices = precision, wanted.model_dump(), keep.model_dump(), scores, known.task, boxes.model_dump()
    about = *files, digests_of(rounded), *choices
    work = shares_of_work(graph, switched.layers, sizes)
    is_alike = is_written_here(precision, keep, wanted)
    with open_cluster() as cluster, scratch_folder() as scratch:
        run, convert = (switched.run_with, None) if is_alike else (run_converted, converted)
        there = OnCluster(cluster, graph, rounding, convert, scratch) if cluster else None
        trial = Trial(graph, switched, run, samples, task, limits, there)
        # Sums may differ in their last bits with another number of threads.
        journal = Journal.about(*about, cluster and cluster.threads)
        answer = find_spared(trial, work, journal, seconds)
    operators = {node.name: node.op_type for node in graph.graph.node}
    record = Search(
        precision=precision,
        calibration=ranges.cache_sha256,
        model=ranges.model_sha256,
        rescue=digest_of(rescued),
        layers=tuple(
            Layer(name=name, op_type=operators[name], work=work[name], loss=answer.losses.get(name))
            for name in switched.layers
        ),
        samples=(trial.chosen, trial.checked),
        path=answer.path,
        spared=answer.spared,
    )
    record.write(found)
    print(f"{precision}: {in_words(record)}")

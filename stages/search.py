"""Find the layers that must stay in floating point, so that a precision keeps its thresholds."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.files import scratch_folder, sha256
from enginewright.core.params.model import BoxesParams, ModelParams
from enginewright.core.params.precisions import PrecisionParams, SearchParams
from enginewright.data.sample_set import MANIFEST, SampleSet
from enginewright.graph.files import graph_sha256
from enginewright.graph.onnx_file import load_graph
from enginewright.precision.calibration.cache import Calibration, kept_answers, require_tensors
from enginewright.precision.calibration.calibrate import ranges_by
from enginewright.precision.dialect import Dialect
from enginewright.precision.floats import (
    doubt_in_words,
    floats_in_words,
    left_in_floats,
    require_kept_exist,
    shares_of_work,
)
from enginewright.precision.in_dialect import (
    Ingredients,
    is_written_here,
    quantize_in_dialect,
    rewritten,
    value_ranges,
)
from enginewright.precision.placement import arithmetic_nodes
from enginewright.precision.rescue.records import digest_of, digests_of, open_rescued
from enginewright.precision.rescue.rescue import confirming
from enginewright.precision.search.records import Layer, Search, in_words
from enginewright.precision.search.search import Answer, Journal, find_spared
from enginewright.precision.search.trials import OnCluster, Rounding, Trial
from enginewright.precision.write_int8 import tensors_in_int8, write_int8
from enginewright.targets.ray_cluster import open_cluster
from enginewright.tasks.choose import task_of
from enginewright.tasks.task import Task


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
    seconds, limits = SearchParams.read_for(precision).seconds, PrecisionParams.read_for(precision).thresholds
    samples, wanted = SampleSet.open(calibration), Dialect.read(dialect)
    given, plain = _ingredients(precision, simplified, calibrated, rescued, samples, wanted)
    graph = rewritten(plain, wanted, precision) or plain
    held = confirming(len(samples))
    with open_cluster() as cluster, scratch_folder() as scratch:
        # Sums may differ in their last bits with another number of threads.
        journal = Journal.about(*_all_it_depends_on(precision, given, samples, code), cluster and cluster.threads)
        ranges = _without(held, plain, given.ranges, samples, journal)
        rounding = _rounding(precision, graph, given, ranges)
        layers = arithmetic_nodes(graph, rounding.kept)
        work = shares_of_work(graph, layers, given.sample)
        there = OnCluster(cluster, graph, rounding, scratch) if cluster else None
        convert = _converter(precision, given._replace(ranges=ranges), graph, rounding)
        known = kept_answers(given.ranges, samples)
        trial = Trial(graph, rounding, convert, samples, _task(samples), limits, there, known, held)
        answer = find_spared(trial, work, journal, seconds)
        floats = left_in_floats(convert(answer.spared), given.sample) if layers else ()
    record = Search(
        precision=precision,
        calibration=given.ranges.cache_sha256,
        model=given.ranges.model_sha256,
        rescue=digest_of(rescued),
        layers=_layers(graph, layers, work, answer),
        samples=(trial.chosen, trial.checked, len(held)),
        path=answer.path,
        spared=answer.spared,
    )
    record.write(found)
    print(f"{precision}: {'; '.join(filter(None, (in_words(record), floats_in_words(floats))))}")
    if precision == "int8" and (doubt := doubt_in_words(precision, floats)):
        print(doubt)


def _ingredients(
    precision: str, simplified: Path, calibrated: Path, rescued: Path, samples: SampleSet, wanted: Dialect
) -> tuple[Ingredients, onnx.ModelProto]:
    """Return what the precision is made of, and its graph."""
    source, ranges, rounded, spared = open_rescued(simplified, calibrated, rescued, samples)
    if not len(samples):
        raise EnginewrightError(f"search.{precision} tries layers on calibration samples, and samples.calibration is 0")
    keep, graph = PrecisionParams.read_for(precision).keep, load_graph(source)
    require_kept_exist(keep, graph)
    return Ingredients(source, ranges, samples.cycled(1), wanted, keep, spared, rounded), graph


def _without(
    held: NDArray[np.int64], graph: onnx.ModelProto, ranges: Calibration, samples: SampleSet, journal: Journal
) -> Calibration:
    """Return the ranges without what these samples reach, so that they lose as much by what is cut as any others.
    A file from elsewhere has not seen them, and a single sample is all there is."""
    others = np.setdiff1d(np.arange(len(samples)), held)
    if not ranges.is_measured or not len(others):
        return ranges
    question = ["ranges without", *held.tolist()]
    found = journal.answer(question, lambda: ranges_by(ranges, graph, samples, others).model_dump(mode="json"))
    return Calibration(**found)


def _rounding(precision: str, graph: onnx.ModelProto, given: Ingredients, without: Calibration) -> Rounding:
    """Return what is rounded, and how, by ranges `without` some samples. Refuse those that lack a tensor."""
    kept = given.kept(precision, graph)
    require_tensors(given.ranges, tensors_in_int8(graph, kept, given.wanted.exact_sums))
    largest = given.wanted.largest_weight if precision == "int8" else PRECISIONS[precision].largest
    ranges, exact_sums = value_ranges(without, given.wanted), given.wanted.exact_sums
    return Rounding(ranges, kept, largest, given.rounded or {}, precision, exact_sums)


def _converter(
    precision: str, given: Ingredients, graph: onnx.ModelProto, rounding: Rounding
) -> Callable[[Collection[str]], onnx.ModelProto]:
    """Return what writes the graph with some layers spared, as it will be converted."""
    if is_written_here(precision, given.keep, given.wanted):
        return lambda spared: write_int8(
            graph, rounding.ranges, rounding.kept.union(spared), rounding.largest, rounding.rounded, rounding.exact_sums
        )
    return lambda spared: quantize_in_dialect(precision, given._replace(spared=[*given.spared, *spared]))[0]


def _task(samples: SampleSet) -> Task:
    known = samples.manifest
    return task_of(known.task, ModelParams.read().scores, known.class_names, BoxesParams.read(), known.preprocessing)


def _all_it_depends_on(precision: str, given: Ingredients, samples: SampleSet, code: Path) -> tuple[object, ...]:
    """Return what a measurement depends on, beside the question."""
    manifest = samples.folder / MANIFEST
    files = graph_sha256(given.graph), given.ranges.cache_sha256, sha256(manifest), sha256(code)
    choices = precision, given.wanted.model_dump(), given.keep.model_dump(), ModelParams.read().scores
    task = samples.manifest.task, BoxesParams.read().model_dump()
    return *files, digests_of(given.rounded or {}), *given.spared, *choices, *task


def _layers(
    graph: onnx.ModelProto, layers: Sequence[str], work: Mapping[str, float], answer: Answer
) -> tuple[Layer, ...]:
    operators = {node.name: node.op_type for node in graph.graph.node}
    return tuple(
        Layer(name=name, op_type=operators[name], work=work[name], loss=answer.losses.get(name)) for name in layers
    )

"""Find the layers that must stay in floating point, so that a precision keeps its thresholds."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, PrecisionName
from enginewright.core.files import scratch_folder, sha256
from enginewright.core.params.all import Params
from enginewright.core.params.model import BoxesParams
from enginewright.core.params.precisions import Rest, SearchParams, Thresholds
from enginewright.data.sample_set import MANIFEST, SampleSet
from enginewright.graph.as_written import in_halves, run_optimized
from enginewright.graph.files import graph_sha256
from enginewright.graph.onnx_file import load_graph
from enginewright.measure.agreement import Judge
from enginewright.precision import floats, in_dialect
from enginewright.precision.calibration.cache import Calibration
from enginewright.precision.calibration.calibrate import ranges_of_parts
from enginewright.precision.checks import FIRST, LITTLE, Checks
from enginewright.precision.dialect import Dialect
from enginewright.precision.fusion import nodes_reading_bytes
from enginewright.precision.islands import layers_to_keep
from enginewright.precision.placement import PRODUCTS, arithmetic_nodes, ends_of_attention
from enginewright.precision.records import Search, SearchedLayer, digest_of
from enginewright.precision.search import (
    Convert,
    Journal,
    LayerTrial,
    SearchAnswer,
    SwitchedGraph,
    SwitchedHalves,
    find_spared,
    running_on,
)
from enginewright.precision.write_int8 import Rounding, write_int8
from enginewright.targets.ray_cluster import open_cluster
from enginewright.tasks.choose import task_of

PARTS = 4  # of the samples, each of which is judged by ranges of another


class SearchPaths(NamedTuple):
    simplified: Path
    calibrated: Path
    rescued: Path
    calibration: Path
    dialect: Path
    code: Path
    found: Path


def search(params: Params, precision: PrecisionName, paths: SearchPaths) -> None:
    """Write which layers are spared, what each loses alone, and which sets were tried. Where the thresholds are broken
    with all layers in float16, what that cannot hold breaks them: search again with the rest in float32."""
    if not _is_found(params, precision, paths):
        _is_found(params, precision, paths, "fp32")


def _is_found(params: Params, precision: PrecisionName, paths: SearchPaths, rest: Rest | None = None) -> bool:
    """Search, with the rest in a type, or else as params.yaml says. Tell whether an answer was found and written."""
    samples, dialect = SampleSet.open(paths.calibration), Dialect.read(paths.dialect)
    keep = params.precisions[precision].keep
    keep = keep.model_copy(update={"rest": rest}) if rest else keep
    given = in_dialect.open_rescued(paths.simplified, paths.calibrated, paths.rescued, samples, dialect, keep)
    if not len(samples):
        raise EnginewrightError(f"search.{precision} tries layers on calibration samples, and samples.calibration is 0")
    plain, measured, rescue = load_graph(given.graph), given.ranges, digest_of(paths.rescued)
    floats.require_kept_exist(keep, plain)
    known, how = samples.manifest, params.model
    judge = judge_of(samples, how.scores, how.boxes, params.precisions[precision].thresholds)
    with open_cluster(params.cluster) as cluster, scratch_folder() as scratch:
        as_given, given = given, in_dialect.for_compiler(precision, given, scratch)
        graph = plain if given is as_given else load_graph(given.graph)
        question = (
            *(graph_sha256(given.graph), measured.cache_sha256, sha256(samples.folder / MANIFEST), sha256(paths.code)),
            *(rescue, precision, dialect.model_dump(), keep.model_dump(), how.scores),
            *(known.task, how.boxes.model_dump()),
        )
        # Sums may differ in their last bits with another number of threads.
        journal = Journal.about(*question, cluster and cluster.threads)
        rounding = in_dialect.rounding_of(precision, given, graph)
        there = running_on(cluster, graph, scratch) if cluster else None
        convert = _converter(precision, given, graph, rounding)
        layers = arithmetic_nodes(graph, rounding.kept)
        if not in_dialect.is_written_here(precision, keep, dialect):  # ModelOpt rounds more than that
            followers = {*layers, *ends_of_attention(graph, layers)}
            others = nodes_reading_bytes(convert(())) - followers
            layers += [node.name for node in graph.graph.node if node.name in others and node.op_type in PRODUCTS]
        work = floats.shares_of_work(graph, layers, given.sample)
        checks = Checks(graph, samples, judge, there)
        by_others = [
            (part, given._replace(ranges=by), rounding._replace(ranges=in_dialect.value_ranges(by, dialect)))
            for part, by in _by_others(plain, measured, samples, checks.picked, journal)
        ]
        unseen = [(part, _converter(precision, ranged, graph, rounded)) for part, ranged, rounded in by_others]
        trial = LayerTrial(checks, partial(SwitchedGraph, rounding=by_others[0][-1]), convert, scratch, cluster, unseen)
        answer = find_spared(trial, work, journal, params.search[precision].seconds)
        last = answer.path[-1]
        if keep.rest == "auto" and given.rest == "fp16" and last.spared == len(layers) > 0 and not last.is_promised:
            print(f"{precision} with all layers in fp16, {last.in_words()}, so what is not in {precision} is in fp32")
            return False
        left = floats.left_in_floats(convert(answer.spared), given.sample) if layers else ()
    record = Search(
        precision=precision,
        calibration=measured.cache_sha256,
        model=measured.model_sha256,
        rescue=rescue,
        rest=rest,
        **found_by(checks, graph, work, answer),
    )
    record.write(paths.found)
    print(f"{precision}: {'; '.join(filter(None, (record.in_words(), floats.floats_in_words(left))))}")
    if precision == "int8" and (doubt := floats.doubt_in_words(precision, left)):
        print(doubt)
    if dialect.compiler == "cpu" and (smaller := floats.smaller_in_words(precision, left)):
        print(smaller)
    return True


def judge_of(samples: SampleSet, scores: str | None, boxes: BoxesParams, limits: Thresholds) -> Judge:
    known = samples.manifest
    return Judge(task_of(known.task, scores, known.class_names, boxes, known.preprocessing), samples.truth, limits)


def found_by(checks: Checks, graph: onnx.ModelProto, work: Mapping[str, float], answer: SearchAnswer) -> dict[str, Any]:
    """Return what a record has of each search."""
    operators = {node.name: node.op_type for node in graph.graph.node}
    layers = (
        SearchedLayer(name=name, op_type=operators[name], work=share, loss=answer.losses.get(name))
        for name, share in work.items()
    )
    samples = checks.chosen, checks.checked, checks.judging
    return {"layers": tuple(layers), "samples": samples, "path": answer.path, "spared": answer.spared}


def cast_within_thresholds(
    precision: PrecisionName, source: Path, cast: Convert, samples: SampleSet, judge: Judge, found: Path
) -> onnx.ModelProto:
    """Return the graph in 16 bits. Where it breaks the thresholds, as few nodes as are enough stay in float32: write
    what was searched. A few samples show that most graphs need none."""
    made, exact = cast(()), load_graph(source)
    if Checks(exact, samples, judge, most=FIRST).check_run(run_optimized(made), 0, 0).spent <= LITTLE:
        return made
    kind = TensorProto.DataType.Value(PRECISIONS[precision].onnx_type)
    switch, checks = partial(SwitchedHalves, kind=kind), Checks(exact, samples, judge)
    work = floats.shares_of_work(exact, layers_to_keep(made, in_float32=True), samples.cycled(1))
    with scratch_folder() as scratch:
        trial = LayerTrial(checks, switch, lambda spared: in_halves(exact, kind, {*work} - {*spared}), scratch)
        answer = find_spared(trial, work, Journal(scratch / "journal.jsonl"), SearchParams().seconds)
    record = Search(precision=precision, rest="fp32", **found_by(checks, exact, work, answer))
    record.write(found)
    print(f"{precision}: {record.in_words()}")
    return cast(answer.spared) if answer.spared else made


def _by_others(
    graph: onnx.ModelProto, ranges: Calibration, samples: SampleSet, picked: NDArray[np.int64], journal: Journal
) -> list[tuple[NDArray[np.int64], Calibration]]:
    """Return parts of the samples, each with the ranges of another part alone, which show what is cut of samples that
    are many more than those that ranges are measured on. The first part has those that layers are measured by. Ranges
    from elsewhere have not seen them."""
    places = np.arange(len(samples))
    others = np.setdiff1d(places, picked)
    if not ranges.is_measured or not len(others):
        return [(places, ranges)]
    first = np.concatenate([picked, others[: max(0, len(places) // PARTS - len(picked))]])
    others = np.setdiff1d(others, first)
    parts = [first, *(others[number :: PARTS - 1] for number in range(min(PARTS - 1, len(others))))]
    found = journal.answer(
        ["ranges of parts", PARTS],
        lambda: [each.model_dump(mode="json") for each in ranges_of_parts(ranges, graph, samples, parts)],
    )
    return [(part, Calibration(**found[number - 1])) for number, part in enumerate(parts)]


def _converter(
    precision: str, given: in_dialect.Ingredients, graph: onnx.ModelProto, rounding: Rounding
) -> Callable[[Collection[str]], onnx.ModelProto]:
    """Return what writes the graph with some layers spared, as it will be converted."""
    if in_dialect.is_written_here(precision, given.keep, given.dialect):
        return lambda spared: write_int8(graph, rounding.sparing(spared))
    return lambda spared: in_dialect.quantize_in_dialect(precision, given._replace(spared=(*given.spared, *spared)))[0]

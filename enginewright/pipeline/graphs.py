"""The graph in a precision."""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import HALVES, PRECISIONS, QUANTIZED, PrecisionName
from enginewright.core.files import ENGINES, new_folder
from enginewright.core.params.all import Params
from enginewright.core.params.precisions import Keep
from enginewright.core.text import first_few
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.graph.files import copy_graph
from enginewright.graph.onnx_file import count_nodes, load_graph, opset_of, save_graph
from enginewright.graph.pixels import take_pixels
from enginewright.pipeline.search import cast_within_thresholds, judge_of
from enginewright.precision import in_dialect
from enginewright.precision.cast import CALIBRATION_BATCH
from enginewright.precision.cure import CURE, UNCURED, Cures
from enginewright.precision.dialect import Dialect
from enginewright.precision.floats import Conversion, left_in_floats, require_kept_exist
from enginewright.precision.given import as_compiler_takes, types_of_rounding, unfused
from enginewright.precision.islands import changed
from enginewright.precision.records import MIX, RESCUE, SEARCH, Mix


class Plan(NamedTuple):
    """Hold all that a graph is made from, as the stages before have answered."""

    made_as: str  # the precision, or for a mix that in which it is written; fp32 where nothing is left to do
    keep: Keep
    graph: Path
    given: in_dialect.Ingredients | None = None  # with ranges; None where nothing is calibrated
    mix: Mix | None = None
    answers: Mapping[str, Path] = {}  # the files that it follows, by the names of their copies, which the report reads


class ConvertPaths(NamedTuple):
    simplified: Path
    made_from: Path
    calibrated: Path
    rescued: Path
    calibration: Path
    dialect: Path
    boxes: Path
    cures: Path
    converted: Path


def convert(params: Params, precision: PrecisionName, paths: ConvertPaths) -> None:
    """Write model.onnx and convert.json, and copies of the rescue and the search, or the mix, that it followed."""
    dialect, samples = Dialect.read(paths.dialect), SampleSet.open(paths.calibration)
    plan = plan_for(params, precision, paths, samples)
    graph = load_graph(plan.graph)
    require_kept_exist(plan.keep, graph)
    with new_folder(paths.converted) as unfinished:
        target = unfinished / "model.onnx"
        is_given = params.precisions[precision].made_from == "given"
        taken = as_compiler_takes(graph, precision, dialect) if is_given else graph
        taken = in_dialect.rewritten(taken, dialect, plan.made_as) or taken
        if taken is graph:
            copy_graph(plan.graph, unfinished)
        else:
            graph = taken
            save_graph(graph, target)
        if plan.made_as != "fp32":
            sample = samples.cycled(CALIBRATION_BATCH)

            def made(spared: Collection[str]) -> onnx.ModelProto:
                return in_precision(precision, plan._replace(keep=plan.keep.naming(spared)), target, sample, dialect)

            if precision in HALVES and len(samples):
                limits = params.precisions[precision].thresholds
                judge = judge_of(samples, params.model.scores, params.model.boxes, limits)
                graph = cast_within_thresholds(precision, target, made, samples, judge, unfinished / SEARCH)
            else:
                graph = made(())
            save_graph(graph, target)
        whole = choose_in_graph(graph, BoxesInGraph.read(paths.boxes))
        whole = take_pixels(whole, samples.manifest.preprocessing, params.build.pixels)
        cured = cured_graph(precision, whole, paths.cures, unfinished / CURE)
        if cured is not whole:
            save_graph(whole, unfinished / UNCURED)
        if cured is not graph:
            graph = cured
            save_graph(graph, target)
        for name, answer in plan.answers.items():
            shutil.copyfile(answer, unfinished / name)
        floats = left_in_floats(graph, samples.fed_to(params.build).cycled(1)) if precision in QUANTIZED else ()
        nodes, opset, why = count_nodes(graph), opset_of(graph), unfused(graph, dialect) if is_given else ()
        record = Conversion(precision=precision, opset=opset, nodes=nodes, floats=floats, unfused=why)
        record.write(unfinished / "convert.json")
    for sentence in (*why, f"{sum(nodes.values())} nodes, opset {opset}"):
        print(f"{precision}: {sentence}")


def cured_graph(precision: str, graph: onnx.ModelProto, cures: Path, followed: Path) -> onnx.ModelProto:
    """Return the graph with what cures its engine, and write that beside it. Without a cure it stays as it is."""
    if (cure := Cures.read(cures).by_precision.get(precision)) is None:
        return graph
    if (cured := changed(graph, cure.change)) is None:
        print(f"{precision} is no longer the graph that was cured: run `enginewright cure {ENGINES / precision}` again")
        return graph
    cure.write(followed)
    print(f"{precision}: {cure.in_words()}")
    return cured


def plan_for(params: Params, precision: PrecisionName, paths: ConvertPaths, samples: SampleSet) -> Plan:
    """Read what was calibrated, rescued, searched or mixed, and refuse answers that do not belong together."""
    found, exact = paths.made_from / f"{precision}.json", paths.simplified / "model.onnx"
    if PRECISIONS[precision].is_mixed:
        mix = Mix.read(found)
        plan = Plan(mix.made_as, mix.keep, exact, mix=mix, answers={MIX: found})
        rescue = paths.rescued / mix.made_as if mix.is_searched else None
    else:
        plan = Plan(precision, params.precisions[precision].keep, exact)
        if params.precisions[precision].made_from == "given":
            return Plan("fp32", plan.keep, _given_graph(precision, paths.made_from))  # like fp32, it is as it is to be
        rescue = paths.rescued / precision if paths.made_from not in (paths.calibrated, paths.simplified) else None
    if not PRECISIONS[plan.made_as].is_calibrated:
        return plan
    given = in_dialect.open_rescued(
        paths.simplified, paths.calibrated, rescue, samples, Dialect.read(paths.dialect), plan.keep
    )
    plan = plan._replace(graph=given.graph, given=given)
    if plan.mix:
        if (plan.mix.calibration, plan.mix.model) != given.ranges.origin:
            raise EnginewrightError(f"{precision} was mixed with another calibration or model: run `dvc repro` again")
        return plan._replace(given=given._replace(spared=(*given.spared, *plan.mix.spared)))
    if rescue:
        answers = {SEARCH: found, RESCUE: rescue / RESCUE}
        return plan._replace(given=in_dialect.spare_searched(given, found, rescue), answers=answers)
    return plan


def _given_graph(precision: str, folder: Path) -> Path:
    path, kind = folder / "model.onnx", PRECISIONS[precision].onnx_type
    kinds = types_of_rounding(load_graph(path)) if path.exists() else set()
    if kind not in {each.removeprefix("U") for each in kinds}:
        raise EnginewrightError(
            f"precisions.{precision}.from: the model has no Q/DQ nodes of {kind}; set it to searched or calibrated"
        )
    return path


def in_precision(precision: str, plan: Plan, source: Path, sample: Feeds, dialect: Dialect) -> onnx.ModelProto:
    """Return the graph of a file in its precision. Print the nodes that stay in another, with the reasons."""
    facts, given = PRECISIONS[plan.made_as], plan.given
    rest = given.rest if given else in_dialect.rest_of(plan.keep, dialect)
    if facts.block:
        ranges = given.ranges if given else None
        graph, in_blocks, high = in_dialect.write_blocks_in_dialect(
            plan.made_as, source, ranges, sample, dialect, plan.keep
        )
        products, kind = len(in_blocks) + len(high), "layers" if plan.made_as == "w8" else "products"
        print(f"{precision}: {len(in_blocks)} of {products} {kind} with weights are in blocks of {facts.block}")
    elif given:
        of, mix = given._replace(graph=source), plan.mix
        graph, high = (
            in_dialect.quantize_beside(mix.floating, of) if mix else in_dialect.quantize_in_dialect(plan.made_as, of)
        )
    else:
        graph, high = in_dialect.cast_in_dialect(plan.made_as, source, sample, dialect, plan.keep)
        rest = "fp32"
    for why in dict.fromkeys(high.values()):
        names = [name for name, reason in high.items() if reason == why]
        stay = f"stays in {rest}" if len(names) == 1 else f"stay in {rest}, each"
        print(f"{precision}: {first_few(names)} {stay} because {why}")
    return graph

"""The graph in a precision: rescued, if it is searched, and then converted."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, QUANTIZED, PrecisionName
from enginewright.core.files import new_folder, scratch_folder
from enginewright.core.params.all import Params
from enginewright.core.params.precisions import Keep, rescues_of
from enginewright.core.text import first_few
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.graph.files import copy_graph
from enginewright.graph.onnx_file import count_nodes, load_graph, opset_of, save_graph
from enginewright.precision.dialect import Dialect
from enginewright.precision.floats import Conversion, left_in_floats, require_kept_exist
from enginewright.precision.in_dialect import (
    Ingredients,
    cast_in_dialect,
    open_calibrated,
    open_rescued,
    quantize_beside,
    quantize_in_dialect,
    rest_of,
    rewritten,
    spare_mixed,
    spare_searched,
    write_blocks_in_dialect,
)
from enginewright.precision.records import (
    MIX,
    RESCUE,
    SEARCH,
    Mix,
    write_rounded,
)
from enginewright.precision.rescue import BATCH, Attempts, Confirmation, find_rescues


def rescue(
    params: Params,
    precision: PrecisionName,
    simplified: Path,
    calibrated: Path,
    calibration: Path,
    dialect: Path,
    rescued: Path,
) -> None:
    """Write what was tried; and, if it was kept, the graph with its ranges, and the weights that are rounded."""
    asked, keep = params.precisions[precision].rescue, params.precisions[precision].keep
    samples = SampleSet.open(calibration)
    given = open_calibrated(simplified, calibrated, samples, Dialect.read(dialect), keep)
    if not len(samples):
        raise EnginewrightError(
            f"precisions.{precision}.rescue needs calibration samples, and samples.calibration is 0"
        )
    exact = load_graph(given.graph)
    require_kept_exist(keep, exact)
    with new_folder(rescued) as unfinished, scratch_folder() as scratch:
        attempts = Attempts(precision, samples, scratch)
        by_name = {name: getattr(attempts, name) for name in rescues_of(asked)}
        trial = Confirmation(exact, samples, min(BATCH, params.calibration.batch))
        record, best = find_rescues(precision, given, by_name, asked != "auto", trial, attempts.write)
        record.write(unfinished / RESCUE)
        if best.graph.parent == attempts.folder:
            for file in attempts.folder.iterdir():
                shutil.copyfile(file, unfinished / file.name)
        if best.rounded:
            write_rounded(best.rounded, unfinished)
    print(f"{precision}: {record.in_words()}")


class Plan(NamedTuple):
    """Hold all that a graph is made from, as the stages before have answered."""

    made_as: str  # the precision, or for a mix that in which it is written
    keep: Keep
    graph: Path
    given: Ingredients | None = None  # with ranges; None where nothing is calibrated
    mix: Mix | None = None
    answers: Mapping[str, Path] = {}  # the files that it follows, by the names of their copies, which the report reads


def convert(
    params: Params,
    precision: PrecisionName,
    simplified: Path,
    made_from: Path,
    calibrated: Path,
    rescued: Path,
    calibration: Path,
    dialect: Path,
    boxes: Path,
    converted: Path,
) -> None:
    """Write model.onnx and convert.json, and copies of the rescue and the search, or the mix, that it followed."""
    wanted, samples = Dialect.read(dialect), SampleSet.open(calibration)
    plan = plan_for(params, precision, simplified, made_from, calibrated, rescued, samples, wanted)
    graph = load_graph(plan.graph)
    require_kept_exist(plan.keep, graph)
    with new_folder(converted) as unfinished:
        target = unfinished / "model.onnx"
        if (graph_for_compiler := rewritten(graph, wanted, plan.made_as)) is not None:
            graph = graph_for_compiler
            save_graph(graph, target)
        else:
            copy_graph(plan.graph, unfinished)
        if plan.made_as != "fp32":
            graph = in_precision(precision, plan, target, samples.cycled(1), wanted)
            save_graph(graph, target)
        if (whole := choose_in_graph(graph, BoxesInGraph.read(boxes))) is not graph:
            graph = whole
            save_graph(graph, target)
        for name, answer in plan.answers.items():
            shutil.copyfile(answer, unfinished / name)
        floats = left_in_floats(graph, samples.cycled(1)) if precision in QUANTIZED else ()
        record = Conversion(precision=precision, opset=opset_of(graph), nodes=count_nodes(graph), floats=floats)
        record.write(unfinished / "convert.json")
    print(f"{precision}: {sum(record.nodes.values())} nodes, opset {record.opset}")


def plan_for(
    params: Params,
    precision: PrecisionName,
    simplified: Path,
    made_from: Path,
    calibrated: Path,
    rescued: Path,
    samples: SampleSet,
    dialect: Dialect,
) -> Plan:
    """Read what was calibrated, rescued, searched or mixed, and refuse answers that do not belong together."""
    found, exact = made_from / f"{precision}.json", simplified / "model.onnx"
    if PRECISIONS[precision].is_mixed:
        mix = Mix.read(found)
        plan = Plan(mix.made_as, mix.keep, exact, mix=mix, answers={MIX: found})
        rescue = rescued / mix.made_as if mix.is_searched else None
    else:
        plan = Plan(precision, params.precisions[precision].keep, exact)
        rescue = rescued / precision if made_from not in (calibrated, simplified) else None
    if not PRECISIONS[plan.made_as].is_calibrated:
        return plan
    given = open_rescued(simplified, calibrated, rescue, samples, dialect, plan.keep)
    plan = plan._replace(graph=given.graph, given=given)
    if plan.mix:
        return plan._replace(given=spare_mixed(given, plan.mix))
    if rescue:
        answers = {SEARCH: found, RESCUE: rescue / RESCUE}
        return plan._replace(given=spare_searched(given, found, rescue), answers=answers)
    return plan


def in_precision(precision: str, plan: Plan, source: Path, sample: Feeds, wanted: Dialect) -> onnx.ModelProto:
    """Return the graph of a file in its precision. Print the nodes that stay in another, with the reasons."""
    facts, given, rest = PRECISIONS[plan.made_as], plan.given, rest_of(plan.keep, wanted)
    if facts.block:
        ranges = given.ranges if given else None
        graph, in_blocks, high = write_blocks_in_dialect(plan.made_as, source, ranges, sample, wanted, plan.keep)
        products = len(in_blocks) + len(high)
        print(f"{precision}: {len(in_blocks)} of {products} products with weights are in blocks of {facts.block}")
    elif given:
        of, mix = given._replace(graph=source), plan.mix
        graph, high = quantize_beside(mix.floating, of) if mix else quantize_in_dialect(plan.made_as, of)
    else:
        graph, high = cast_in_dialect(plan.made_as, source, sample, wanted, plan.keep)
        rest = "fp32"
    for why in dict.fromkeys(high.values()):
        names = [name for name, reason in high.items() if reason == why]
        print(f"{precision}: {first_few(names)} {'stays' if len(names) == 1 else 'stay'} in {rest}: {why}")
    return graph

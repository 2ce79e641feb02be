"""Compile the graph of one precision, whose types decide that, and tune the engine if params.yaml says so."""

import math
from pathlib import Path
from typing import NamedTuple

from enginewright.core.errors import CompilerError, EnginewrightError
from enginewright.core.facts import RUNTIMES, PrecisionName
from enginewright.core.files import new_folder, scratch_folder
from enginewright.core.params.all import Params
from enginewright.core.params.build import BuildParams
from enginewright.core.user_files import user_plugins
from enginewright.data.sample_set import TOKENIZER, SampleSet, checked_feeds
from enginewright.engine.build import DescribedGraph, build_engine, build_variant, keep_engine
from enginewright.engine.machine import Target, lacking
from enginewright.engine.record import REFUSED, EngineRecord, Refusal, TuningPlan
from enginewright.engine.tools import write_comparison
from enginewright.graph.onnx_file import load_graph, sha256_without_weights
from enginewright.graph.passes.for_one_compiler import TO_TRY
from enginewright.measure.timing import whole_machine
from enginewright.precision.cure import CURE, Cure
from enginewright.targets.ray_cluster import whole_node


class BuildPaths(NamedTuple):
    converted: Path
    target: Path
    validation: Path
    calibration: Path
    plugins: Path
    plan: Path
    tuned: Path
    engine: Path


def build(params: Params, precision: PrecisionName, paths: BuildPaths) -> None:
    """Write the engine's files and engine.json. If a GPU lacks the precision, or the compiler fails on the graph,
    write refused.json instead of failing, so that the other precisions go on."""
    target, cure = Target.read(paths.target), paths.converted / CURE
    how = params.build.at_level(Cure.read(cure).change.optimization_level if cure.exists() else None)
    samples = SampleSet.open(paths.validation).fed_to(how)
    user_plugins(how.tensorrt.plugins, paths.plugins)
    is_tensorrt, tune = RUNTIMES[target.runtime].is_tensorrt, how.tensorrt.tune
    plan = paths.plan.read_bytes() if is_tensorrt and tune else b""
    try:
        graph = DescribedGraph(
            precision,
            paths.converted / "model.onnx",
            samples.manifest,
            scores=params.model.scores,
            boxes=params.model.boxes,
            tokenizer=paths.validation / TOKENIZER if samples.manifest.text else None,
            example=samples.cycled(how.profile.batch.min),
        )
        if plan.strip() in (b"", b"null"):
            record = build_engine(graph, target, how, paths.engine)
        else:
            with whole_node(f"tuning, {precision}", params.cluster), whole_machine(f"tuning, {precision}"):
                record = tuned(graph, target, how.with_option("tune", None), plan, paths)
        write_comparison(record, paths.converted / "model.onnx", checked_feeds(samples, how.profile), paths.engine)
    except EnginewrightError as error:
        without, failed = lacking(target, precision), isinstance(error, CompilerError)
        if not (without or failed):
            raise
        why = f"compute capability {', '.join(without)} does not have {precision}; {error}" if without else str(error)
        with new_folder(paths.engine) as unfinished:
            Refusal(precision=precision, why=why, failed=not without).write(unfinished / REFUSED)
        print(f"{precision}: not built: {why}")
        return
    if record.remark:
        print(f"{precision}: {record.remark}")
    executed = ", ".join(f"{count} {name}" for name, count in record.executed.items()) or "known once built on a GPU"
    print(f"{precision}: {record.size_in_words} in {record.build_seconds:.1f} s; compute layers: {executed}")
    if record.tuning:
        print(f"{precision}: tuned: {record.tuning.in_words()}")
    elif is_tensorrt and record.layers and not tune:
        seconds = 60 * math.ceil(record.build_seconds / 6)  # for ten builds
        print(f"{precision}: build.tensorrt.tune: {{seconds: {seconds}}} may find what is faster on this GPU")


def tuned(graph: DescribedGraph, target: Target, asked: BuildParams, given: bytes, paths: BuildPaths) -> EngineRecord:
    """Repeat what was found for this graph, or search for it, and note it for git and for DVC."""
    plan, graph_sha256 = TuningPlan.parse(given, str(paths.plan)), sha256_without_weights(load_graph(graph.onnx))
    tuning = plan.found
    if tuning and ((tuning.graph_sha256, tuning.asked) != (graph_sha256, asked) or {*tuning.best.changes} - {*TO_TRY}):
        tuning = None
    with scratch_folder() as scratch:
        engine = scratch / "engine"
        if tuning:
            record = build_variant(graph, target, tuning.best, engine)
        elif plan.seconds:
            from enginewright.pipeline.tune import TuningSearch

            samples = SampleSet.open(paths.calibration).fed_to(asked)
            engine, record, tuning = TuningSearch(graph, target, plan, samples, scratch).run(asked, graph_sha256)
            tuning.write(paths.tuned / f"{graph.precision}.json")
            plan.model_copy(update={"found": tuning}).write(paths.plan)
        else:
            print(f"{graph.precision}: not tuned: {paths.tuned} has nothing for this graph on this machine")
            record = build_engine(graph, target, asked, engine)
        return keep_engine(engine, record.model_copy(update={"tuning": tuning}), graph.onnx, paths.engine)

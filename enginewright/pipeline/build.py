"""Compile the graph of one precision for the target. The types in the graph decide the precision, not this stage."""

from pathlib import Path
from typing import NamedTuple

from enginewright.core.errors import CompilerError, EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.files import new_folder
from enginewright.core.params.all import Params
from enginewright.core.user_files import user_plugins
from enginewright.data.sample_set import TOKENIZER, SampleSet, checked_feeds
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import Target, lacking
from enginewright.engine.record import REFUSED, Refusal
from enginewright.engine.tools import write_comparison
from enginewright.precision.cure import CURE, Cure


class BuildPaths(NamedTuple):
    converted: Path
    target: Path
    validation: Path
    plugins: Path
    engine: Path


def build(params: Params, precision: PrecisionName, paths: BuildPaths) -> None:
    """Write the engine's files and engine.json. If a GPU lacks the precision, or the compiler fails on the graph,
    write refused.json instead of failing, so that the other precisions go on."""
    target, cure = Target.read(paths.target), paths.converted / CURE
    how = params.build.at_level(Cure.read(cure).change.optimization_level if cure.exists() else None)
    samples = SampleSet.open(paths.validation).fed_to(how)
    user_plugins(how.tensorrt.plugins, paths.plugins)
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
        record = build_engine(graph, target, how, paths.engine)
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

"""Reduce the fault of a precision's engine: find its graph, its runtime and samples of the project."""

import time
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.core.paths import VALIDATION_SAMPLES
from enginewright.core.runtimes import RUNTIMES
from enginewright.core.text import suggestion
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.runtimes import load_runtime
from enginewright.engine.target import Target, target_of
from enginewright.engine.this_machine import describe_machine
from enginewright.graph.onnx_file import graph_inputs, load_graph
from enginewright.reduction.case import Case
from enginewright.reduction.reduce import Way, reduce_fault, require_replaceable, summary

LARGEST_BATCH = 16
SHARE = 1 / 3  # of the relative error that the thresholds allow: from there on a result counts as wrong
REDUCED = Path("reduced")


def reduce_precision(
    precision: str,
    graph: Path | None,
    runtime: str | None,
    cured: bool,
    limit: float | None,
    seconds: float,
    out: Path | None,
    artifacts: Path,
) -> str:
    """Return what was found, as a sentence."""
    params = Params.read()
    if precision not in params.precisions:
        raise EnginewrightError(f"params.yaml makes no '{precision}'{suggestion(precision, params.precisions)}")
    require_replaceable(folder := out or REDUCED / precision)
    onnx = graph or artifacts / "converted" / precision / "model.onnx"
    model = load_graph(onnx)
    if not model.graph.node:
        raise EnginewrightError(f"{onnx} has no nodes")
    target = _target(runtime, params, artifacts)
    allowed = params.precisions[precision].thresholds.relative_error
    way = Way(target, limit or round(allowed * SHARE, 6), cured and target.runtime == "openvino")
    runs = _runs(SampleSet.open(artifacts / VALIDATION_SAMPLES.relative_to("artifacts")), params)
    names = [tensor.name for tensor in graph_inputs(model.graph)]
    if missing := [name for name in names if name not in runs[0]]:
        raise EnginewrightError(f"{onnx} reads '{missing[0]}', and the samples have {', '.join(runs[0])}")
    fed = [{name: run[name] for name in names} for run in runs]
    started = time.monotonic()
    least, fault = reduce_fault(Case(model, fed), way, seconds, folder)
    return summary(least, fault, folder, time.monotonic() - started < seconds)


def _target(runtime: str | None, params: Params, artifacts: Path) -> Target:
    made_for = Target.read(artifacts / "target.json")
    if runtime and runtime not in RUNTIMES:
        raise EnginewrightError(f"--runtime {runtime}{suggestion(runtime, RUNTIMES)}")
    name = runtime or made_for.runtime
    if missing := load_runtime(name).missing():
        raise EnginewrightError(missing)
    return made_for if name == made_for.runtime else target_of(describe_machine(name), params.build.tensorrt)


def _runs(samples: SampleSet, params: Params) -> list[Feeds]:
    """Return samples at the largest and at the smallest size that an engine takes."""
    profile = params.build.profile
    ends = [min(profile.batch.max, max(LARGEST_BATCH, profile.batch.min)), profile.batch.min]
    sizes = [profile.at("max"), profile.at("min")]
    feeds = [samples.at(size, profile).cycled(batch) for batch, size in zip(ends, sizes, strict=True)]
    return feeds if ends[0] > ends[1] or profile.resizes else feeds[:1]

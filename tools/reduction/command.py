"""`enginewright reduce`: reduce the fault of a precision's engine, with its graph, its runtime and samples."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from onnx import TensorProto

from enginewright.cli.arguments import FILE, FOLDER, PRECISION, add_completed, add_path, number_above_zero
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES
from enginewright.core.files import ARTIFACTS, VALIDATION_SAMPLES
from enginewright.core.params.all import Params
from enginewright.core.text import suggestion
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.machine import Target, target_of
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.graph.onnx_file import graph_inputs, load_graph
from tools.reduction.case import Case
from tools.reduction.reduce import Setup, reduce_fault, require_replaceable, summary

LARGEST_BATCH = 16
SHARE = 1 / 3  # of the relative error that the thresholds allow: from there on a result counts as wrong
EXAMPLES = """\
examples:
  enginewright reduce int8
  enginewright reduce int8 --without-cures
  enginewright reduce bf16 --runtime tensorrt_rtx
  enginewright reduce fp32 --graph artifacts/exported/model.onnx

Compares the runtime with the definition of the graph, and leaves out nodes as
long as they differ, or as long as the runtime refuses them or crashes. The
folder has fails.py, which needs the runtime and NumPy alone. Exits 1 if the
runtime is right."""


def add_arguments(command: ArgumentParser) -> None:
    add_completed(command, "precision", PRECISION, help="a precision that `dvc repro` converted, such as int8")
    add_path(command, "--graph", FILE, metavar="FILE", help="another ONNX file than the converted one")
    command.add_argument("--runtime", metavar="NAME", help="another runtime than the engines', such as tensorrt_rtx")
    cures = "read the graph as OpenVINO does by itself, without what is done about its known faults"
    command.add_argument("--without-cures", action="store_true", help=cures)
    limit = "the relative error from which on a result is wrong; a third of precisions.P.thresholds if not given"
    command.add_argument("--limit", type=number_above_zero, metavar="ERROR", help=limit)
    seconds = "how long to search, 600 if not given"
    command.add_argument("--seconds", type=number_above_zero, default=600, metavar="SECONDS", help=seconds)
    add_path(command, "--out", FOLDER, metavar="FOLDER", help="reduced/PRECISION if not given")
    where = f"where what the pipeline made is, {ARTIFACTS} if not given"
    add_path(command, "--artifacts", FOLDER, default=ARTIFACTS, metavar="FOLDER", help=where)


def run(chosen: Namespace) -> int:
    """Print what was found, as a sentence."""
    precision, out = chosen.precision, chosen.out or Path("reduced") / chosen.precision
    params = Params.read()
    if precision not in params.precisions:
        raise EnginewrightError(f"params.yaml makes no '{precision}'{suggestion(precision, params.precisions)}")
    require_replaceable(out)
    onnx = chosen.graph or chosen.artifacts / "converted" / precision / "model.onnx"
    model = load_graph(onnx)
    target = _target(chosen.runtime, params, chosen.artifacts)
    allowed = params.precisions[precision].thresholds.relative_error
    cured = not chosen.without_cures and target.runtime == "openvino"
    how = Setup(target, chosen.limit or round(allowed * SHARE, 6), cured)
    inputs = graph_inputs(model.graph)
    names = [tensor.name for tensor in inputs]
    samples = SampleSet.open(chosen.artifacts / VALIDATION_SAMPLES.relative_to("artifacts"))
    if any(tensor.type.tensor_type.elem_type == TensorProto.UINT8 for tensor in inputs):
        samples = samples.fed_to(params.build)
    runs = _runs(samples, params)
    if missing := [name for name in names if name not in runs[0]]:
        raise EnginewrightError(f"{onnx} reads '{missing[0]}', and the samples have {', '.join(runs[0])}")
    fed = [{name: run[name] for name in names} for run in runs]
    started = time.monotonic()
    least, fault = reduce_fault(Case(model, fed), how, chosen.seconds, out)
    print(summary(least, fault, out, time.monotonic() - started < chosen.seconds))
    return 0


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

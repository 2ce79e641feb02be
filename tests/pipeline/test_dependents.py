"""What depends on each parameter: the stages that list it, and all that follow them.

Whether a follower really runs is decided by content, which test_pipeline.py shows on the running pipeline.
"""

import networkx
import pytest
from dvc.repo import Repo
from support.paths import ROOT

PRECISIONS = ("fp32", "fp16", "bf16", "int8")


def each(*stages):
    return {f"{stage}@{precision}" for stage in stages for precision in PRECISIONS}


ENDS = {"report", "gate"}
AFTER_CALIBRATION = {"convert@int8", "build@int8", "validate@int8", "benchmark@int8", "trace@int8"} | ENDS
AFTER_EXPORT = {"simplify", "calibrate"} | each("convert", "build", "validate", "benchmark", "trace") | ENDS
AFTER_WEIGHTS = {"reference", "export"} | AFTER_EXPORT
DEPENDENTS = {
    "runtime": {"machine", "samples", "weights"} | AFTER_WEIGHTS,
    "samples.seed": {"samples", "weights"} | AFTER_WEIGHTS,
    "model.source": {"machine", "samples", "weights"} | AFTER_WEIGHTS,
    "weights.training.seed": {"weights"} | AFTER_WEIGHTS,
    "export.opset": {"export"} | AFTER_EXPORT,
    "calibration.bins": {"calibrate"} | AFTER_CALIBRATION,
    "precisions.int8.keep.nodes": AFTER_CALIBRATION,
    "precisions.bf16.thresholds.cosine": {"validate@bf16"} | ENDS,
    "build.profile.batch.opt": each("build", "validate", "benchmark", "trace") | ENDS,
    "build.profile.batch.max": AFTER_WEIGHTS,
    "build.profile.height": {"export"} | AFTER_EXPORT,
    "precisions.int8.must_pay": ENDS,
    "inference.threads": each("validate", "benchmark", "trace") | ENDS,
    "validation.spot_samples": each("validate") | ENDS,
    "benchmark.seconds": each("benchmark") | ENDS,
}


@pytest.fixture(scope="module")
def graph():
    with Repo(str(ROOT)) as repo:
        yield repo.index.graph


@pytest.mark.parametrize(("parameter", "dependents"), DEPENDENTS.items(), ids=list(DEPENDENTS))
def test_what_depends_on_each_parameter(graph, parameter, dependents):
    listing = {stage for stage in graph if any(lists(dependency, parameter) for dependency in stage.deps)}
    # DVC's edges point from a stage to what it needs, so what depends on it are its ancestors.
    followers = set().union(*(networkx.ancestors(graph, stage) for stage in listing))
    assert {stage.addressing.removeprefix("dvc.yaml:") for stage in listing | followers} == dependents


def lists(dependency, parameter):
    """Whether a stage's params: entry is the parameter, or a section that holds it, or, without names, the file."""
    listed = getattr(dependency, "params", None)
    return listed == [] or any(parameter == name or parameter.startswith(f"{name}.") for name in listed or ())

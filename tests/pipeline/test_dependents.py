"""List what depends on a parameter, or on a file that `machine` writes: the stages that read it, and their followers.

The content of files decides whether a follower really runs, which test_pipeline.py shows on the running pipeline.
"""

import networkx
import pytest
from dvc.repo import Repo
from support.paths import ROOT

from enginewright.core.facts import HALVES
from enginewright.pipeline.dependencies import OF_PRECISION, OF_STAGE

PRECISIONS = ("fp32", "fp16", "bf16", "int8")


def each(*stages):
    return {f"{stage}@{precision}" for stage in stages for precision in PRECISIONS}


ENDS = {"report", "gate"}
AFTER_SEARCH = {"convert@int8", "build@int8", "validate@int8", "benchmark@int8", "trace@int8", "race"} | ENDS
AFTER_RESCUE = {"search@int8"} | AFTER_SEARCH
AFTER_CALIBRATION = {"rescue@int8"} | AFTER_RESCUE
AFTER_EXPORT = (
    {"simplify", "calibrate", "rescue@int8", "search@int8"}
    | each("convert", "build", "validate", "benchmark", "trace")
    | {"race"}
    | ENDS
)
AFTER_WEIGHTS = {"reference", "export"} | AFTER_EXPORT
RACES = each("validate", "benchmark", "trace") | {"race"}
DEPENDENTS = {
    # Parameters. `machine` lists none, as it always runs; it finds the runtime, and the files of the user's model.
    "runtime": ENDS,
    "samples.seed": {"samples", "weights"} | AFTER_WEIGHTS,
    "samples.text": {"samples", "weights"} | AFTER_WEIGHTS,
    "model.source": {"weights"} | AFTER_WEIGHTS,
    "weights.training.seed": {"weights"} | AFTER_WEIGHTS,
    "model.boxes.iou": {"export", "reference"} | AFTER_EXPORT,
    "export.opset": {"export"} | AFTER_EXPORT,
    "calibration.bins": {"calibrate"} | AFTER_CALIBRATION,
    "precisions.int8.keep.nodes": AFTER_CALIBRATION,
    "precisions.int8.rescue": AFTER_CALIBRATION,
    "precisions.int8.thresholds.cosine": AFTER_RESCUE,
    "search.int8.seconds": AFTER_RESCUE,
    "precisions.int8.cure": {"validate@int8"} | ENDS,
    "precisions.bf16.thresholds.cosine": {
        "convert@bf16",
        "build@bf16",
        "validate@bf16",
        "benchmark@bf16",
        "trace@bf16",
        "race",
    }
    | ENDS,
    "build.profile.batch.opt": each("build") | RACES | ENDS,
    "build.pixels": each("convert", "build") | RACES | ENDS,
    "build.profiles": each("build") | RACES | ENDS,
    "build.profile.batch.max": AFTER_WEIGHTS,
    "build.profile.height": {"export"} | AFTER_EXPORT,
    "build.profile.axes": {"export"} | AFTER_EXPORT,
    "precisions.int8.must_pay": ENDS,
    "inference.threads": RACES | ENDS,
    "validation.spot_samples": each("validate") | ENDS,
    "benchmark.seconds": each("benchmark") | {"race"} | ENDS,
    "cluster.address": ENDS,
    "timeouts.build": ENDS,
    # What `machine` writes.
    "artifacts/machine.json": RACES | ENDS,
    "artifacts/target.json": each("build") | RACES | ENDS,
    "artifacts/dialect.json": {"calibrate", "rescue@int8", "search@int8"} | each("convert", "build") | RACES | ENDS,
    "artifacts/cures.json": each("convert", "build") | RACES | ENDS,
    "artifacts/task.json": {"samples", "weights"} | AFTER_WEIGHTS,
    "artifacts/tools.json": {"samples", "weights"} | AFTER_WEIGHTS,
    "artifacts/code/weights.json": {"weights"} | AFTER_WEIGHTS,
    "artifacts/code/trace.json": each("trace") | ENDS,
    "artifacts/code/report.json": ENDS,
    "artifacts/code/gate.json": {"gate"},
}


@pytest.fixture(scope="module")
def graph():
    with Repo(str(ROOT)) as repo:
        yield repo.index.graph


@pytest.mark.parametrize(("changed", "dependents"), DEPENDENTS.items(), ids=list(DEPENDENTS))
def test_what_depends_on_each_parameter_and_on_each_file_that_machine_writes(graph, changed, dependents):
    files = {changed} if changed.startswith("artifacts/") else files_with(changed)
    listing = {stage for stage in graph if any(dependency.def_path in files for dependency in stage.deps)}
    # DVC's edges point from a stage to what it needs, so what depends on it are its ancestors.
    followers = set().union(*(networkx.ancestors(graph, stage) for stage in listing))
    assert {stage.addressing.removeprefix("dvc.yaml:") for stage in listing | followers} == dependents


def files_with(parameter):
    """Return the files that hold the parameter, alone or in a section."""
    names = {stage: [stage] for stage in OF_STAGE}
    names |= {stage: [f"{stage}/{key}" for key in PRECISIONS] for stage in OF_PRECISION}
    return {
        f"artifacts/parameters/{name}.json"
        for stage, places in (OF_STAGE | OF_PRECISION).items()
        for name in names[stage]
        for key in [name.partition("/")[2]]
        for place in places
        if f"{parameter}.".startswith(f"{place.format(key=key, halves=key if key in HALVES else '', floating='')}.")
    }

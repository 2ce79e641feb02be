"""One engine: compared with PyTorch, to find what causes a loss, and timed layer by layer."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from enginewright.core.facts import PrecisionName
from enginewright.core.files import new_folder
from enginewright.core.params.all import Params
from enginewright.core.params.precisions import as_executed
from enginewright.core.text import counted
from enginewright.data.run_all import Running, outputs_on
from enginewright.data.sample_set import SampleSet, output_file
from enginewright.engine.engine import open_engine, running_engine
from enginewright.engine.machine import Machine
from enginewright.engine.record import pass_on_refusal, require_made_of
from enginewright.graph.as_written import run_as_written, running_graph
from enginewright.measure.benchmark import trace_engine
from enginewright.measure.examples import EXAMPLES, Examples
from enginewright.measure.records import Reference, Validation
from enginewright.measure.timing import whole_machine
from enginewright.measure.validate import Expected, validate_engine
from enginewright.targets.ray_cluster import open_cluster, whole_node


class ValidatePaths(NamedTuple):
    engine: Path
    converted: Path
    validation: Path
    reference: Path
    machine: Path
    report: Path
    examples: Path


def validate(params: Params, precision: PrecisionName, paths: ValidatePaths) -> None:
    """Write the validation record of one precision, and draw the samples on which it differs most."""
    if pass_on_refusal(paths.engine, paths.report):
        with new_folder(paths.examples) as unfinished:
            Examples(examples=()).write(unfinished / EXAMPLES)
        return
    here = Machine.read(paths.machine)
    known = Reference.read(paths.reference / "reference.json")
    arrays = {
        name: np.load(paths.reference / output_file(number), mmap_mode="r") for number, name in enumerate(known.outputs)
    }
    samples, limits = SampleSet.open(paths.validation), params.precisions[precision].thresholds
    run_engine = partial(running_engine, inference=params.inference)
    with (
        open_cluster(params.cluster) as cluster,
        open_engine(paths.engine, here, params.inference) as loaded,
        new_folder(paths.examples) as unfinished,
    ):
        require_made_of(loaded.record, precision, paths.converted / "model.onnx")
        fed = samples.fed_to(loaded.record.build)
        limits = as_executed(limits, loaded.record.executed) if precision == "fp32" else limits
        record = validate_engine(
            loaded,
            run_as_written(paths.converted / "model.onnx"),
            Expected(fed, arrays, limits, known.made_by, known.by_chance, known.doubt),
            params.validation,
            unfinished,
            (
                outputs_on(Running(paths.converted, running_graph), cluster),
                outputs_on(Running(paths.engine, run_engine, gpus=int(here.device == "cuda")), cluster),
            ),
        )
    record.write(paths.report)
    errors = record.engine_against_pytorch
    agreed = record.agreement
    agreeing = f", {agreed.name} {agreed.share_with_interval}" if agreed else ""
    print(f"{precision}: {_results(record)}, cosine {errors.cosine:.6f}{agreeing}")
    for line in record.broken:
        print(f"{precision}: BROKEN THRESHOLD: {line}")
    for line in record.unsure:
        print(f"{precision}: not sure: {line}")
    found = record.engine_against_graph
    if params.precisions[precision].cure and (found.nonfinite or found.relative > limits.relative_error):
        subprocess.run([sys.executable, "-m", "enginewright.cli", "cure", paths.engine])


def _results(record: Validation) -> str:
    if not record.results:
        return f"{record.metric} not measured: {record.lacking}"
    return ", ".join(
        f"{one.name} {one.written(one.engine)} ({record.reference} {one.written(one.reference)}, "
        f"drop {one.drop_with_interval})"
        for one in record.results
    )


def trace(
    params: Params, precision: PrecisionName, engine: Path, validation: Path, machine: Path, report: Path
) -> None:
    """Write the trace of one precision."""
    if pass_on_refusal(engine, report):
        return
    here = Machine.read(machine)
    inference, samples = params.inference.on(here.cores), SampleSet.open(validation)
    with whole_node(f"trace, {precision}", params.cluster), whole_machine(f"trace, {precision}"):
        record = trace_engine(engine, here, inference, samples)
    record.write(report)
    if not record.layers:
        print(f"{precision}: {here.runtime} gives no times of layers")
        return
    slowest = max(record.layers, key=lambda layer: layer.milliseconds)
    print(
        f"{precision}: {counted(len(record.layers), 'layer')} in {record.milliseconds:.3f} ms at batch {record.batch}; "
        f"the slowest, {slowest.name}, takes {slowest.milliseconds:.3f} ms"
    )

"""One engine: compared with PyTorch, to find what causes a loss, and timed layer by layer."""

from pathlib import Path

import numpy as np

from enginewright.core.facts import PrecisionName
from enginewright.core.files import new_folder
from enginewright.core.params.all import Params
from enginewright.data.run_all import outputs_on
from enginewright.data.sample_set import SampleSet, output_file
from enginewright.engine.build import EngineWork
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import Machine
from enginewright.engine.record import pass_on_refusal, require_made_of
from enginewright.graph.as_written import GraphWork, run_as_written
from enginewright.measure.benchmark import trace_engine
from enginewright.measure.examples import EXAMPLES, Examples
from enginewright.measure.records import Reference, Validation
from enginewright.measure.timing import whole_machine
from enginewright.measure.validate import Expected, validate_engine
from enginewright.targets.ray_cluster import open_cluster, whole_node


def validate(
    params: Params,
    precision: PrecisionName,
    engine: Path,
    converted: Path,
    validation: Path,
    reference: Path,
    machine: Path,
    report: Path,
    examples: Path,
) -> None:
    """Write the validation record of one precision, and draw the samples on which it differs most."""
    if pass_on_refusal(engine, report):
        with new_folder(examples) as unfinished:
            Examples(examples=()).write(unfinished / EXAMPLES)
        return
    here = Machine.read(machine)
    expected = _expected(SampleSet.open(validation), reference)
    with (
        open_cluster(params.cluster) as cluster,
        open_engine(engine, here, params.inference) as loaded,
        new_folder(examples) as unfinished,
    ):
        require_made_of(loaded.record, precision, converted / "model.onnx")
        record = validate_engine(
            loaded,
            run_as_written(converted / "model.onnx"),
            expected,
            params.precisions[precision].thresholds,
            params.validation,
            unfinished,
            (
                outputs_on(GraphWork(converted), cluster),
                outputs_on(EngineWork(engine, params.inference, gpus=int(here.device == "cuda")), cluster),
            ),
        )
    record.write(report)
    errors = record.engine_against_pytorch
    agreed = record.agreement
    agreeing = f", {agreed.name} {agreed.share_with_interval}" if agreed else ""
    print(f"{precision}: {_results(record)}, cosine {errors.cosine:.6f}{agreeing}")
    for line in record.broken:
        print(f"{precision}: BROKEN THRESHOLD: {line}")
    for line in record.unsure:
        print(f"{precision}: not sure: {line}")


def _expected(samples: SampleSet, reference: Path) -> Expected:
    record = Reference.read(reference / "reference.json")
    files = (reference / output_file(number) for number, _ in enumerate(record.outputs))
    outputs = {name: np.load(file, mmap_mode="r") for name, file in zip(record.outputs, files, strict=True)}
    return Expected(samples, outputs, record.made_by, record.by_chance, record.doubt)


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
        f"{precision}: {len(record.layers)} layers take {record.milliseconds:.3f} ms at batch {record.batch}; "
        f"the slowest, {slowest.name}, takes {slowest.milliseconds:.3f} ms"
    )

"""Compare one engine with PyTorch, and find what causes a loss. A broken threshold is written down, not raised."""

from pathlib import Path

import numpy as np

from enginewright.core.files import new_folder
from enginewright.core.params.build import InferenceParams
from enginewright.core.params.measuring import ValidationParams
from enginewright.core.params.precisions import PrecisionParams
from enginewright.data.run_all import outputs_on
from enginewright.data.sample_set import SampleSet, output_file
from enginewright.engine.build import EngineWork
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import Machine
from enginewright.engine.record import pass_on_refusal, require_made_of
from enginewright.graph.as_written import GraphWork
from enginewright.measure.accuracy_records import Reference, Validation
from enginewright.measure.examples import EXAMPLES, Examples
from enginewright.measure.validate import Elsewhere, Wanted, validate_engine
from enginewright.targets.ray_cluster import open_cluster


def validate(
    precision: str,
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
    wanted = _wanted(SampleSet.open(validation), reference)
    with (
        open_cluster() as cluster,
        open_engine(engine, here, InferenceParams.read()) as loaded,
        new_folder(examples) as unfinished,
    ):
        require_made_of(loaded.record, precision, converted / "model.onnx")
        record = validate_engine(
            loaded,
            converted / "model.onnx",
            wanted,
            PrecisionParams.read_for(precision).thresholds,
            ValidationParams.read(),
            unfinished,
            Elsewhere(
                outputs_on(GraphWork(converted), cluster),
                outputs_on(EngineWork(engine, InferenceParams.read(), gpus=int(here.device == "cuda")), cluster),
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


def _wanted(samples: SampleSet, reference: Path) -> Wanted:
    record = Reference.read(reference / "reference.json")
    files = (reference / output_file(number) for number, _ in enumerate(record.outputs))
    outputs = {name: np.load(file, mmap_mode="r") for name, file in zip(record.outputs, files, strict=True)}
    return Wanted(samples, outputs, record.made_by, record.by_chance, record.doubt)


def _results(record: Validation) -> str:
    if not record.results:
        return f"{record.metric} not measured: {record.lacking}"
    return ", ".join(
        f"{one.name} {one.written(one.engine)} ({record.reference} {one.written(one.reference)}, "
        f"drop {one.drop_with_interval})"
        for one in record.results
    )

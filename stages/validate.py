"""Hold one engine against PyTorch and find whose fault a loss is. A broken threshold is written down, not raised."""

from pathlib import Path

import numpy as np

from enginery.core.params import load_params, precision_params
from enginery.core.records import Machine, Reference, Validation
from enginery.core.stage import run_stage
from enginery.engines import Engine, require_made_of
from enginery.samples import SampleSet, output_file
from enginery.validate import validate_engine


def validate(
    precision: str, engine: Path, converted: Path, validation: Path, reference: Path, machine: Path, report: Path
) -> None:
    """Write the validation record of one precision."""
    params, here = load_params(), Machine.read(machine)
    wanted = Reference.read(reference / "reference.json")
    with Engine.open(engine, here, params.inference) as loaded:
        require_made_of(loaded.record, precision, converted / "model.onnx")
        record = validate_engine(
            loaded,
            converted / "model.onnx",
            SampleSet.open(validation),
            {name: np.load(reference / output_file(n), mmap_mode="r") for n, name in enumerate(wanted.outputs)},
            precision_params(params, precision).thresholds,
            params.validation.spot_samples,
            wanted.made_by,
        )
    record.write(report)
    errors = record.engine_against_pytorch
    agreeing = "" if errors.top1_agreement is None else f", top-1 agreement {errors.top1_agreement:.2%}"
    print(f"{precision}: {_accuracy(record)}, cosine {errors.cosine:.6f}{agreeing}")
    for line in record.broken:
        print(f"{precision}: BROKEN THRESHOLD: {line}")


def _accuracy(record: Validation) -> str:
    if record.engine_accuracy is None:
        return "accuracy not measured: no labels or no scores"
    return f"accuracy {record.engine_accuracy:.2%} ({record.reference} {record.reference_accuracy:.2%})"


if __name__ == "__main__":
    run_stage(validate)

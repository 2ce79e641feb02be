"""Compile the graph of one precision for the target. The types in the graph decide the precision, not this stage."""

from pathlib import Path

from enginery.core.params.build import BuildParams
from enginery.core.params.model import ModelParams
from enginery.core.text import file_size
from enginery.data.manifest import Manifest
from enginery.engine.build import build_engine
from enginery.engine.target import Target


def build(precision: str, converted: Path, target: Path, validation: Path, engine: Path) -> None:
    """Write the engine's files and engine.json."""
    record = build_engine(
        precision,
        converted / "model.onnx",
        Target.read(target),
        BuildParams.read(),
        Manifest.read(validation / "manifest.json"),
        engine,
        ModelParams.read().scores,
    )
    executed = ", ".join(f"{count} {name}" for name, count in record.executed.items()) or "known once built on a GPU"
    print(f"{precision}: {file_size(record.bytes)} in {record.build_seconds:.1f} s; compute layers: {executed}")

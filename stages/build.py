"""Compile one precision's ONNX for the target. Blind to precision: the types are in the graph."""

from pathlib import Path

from enginery.core.params import load_params
from enginery.core.records import Manifest, Target
from enginery.core.sizes import file_size
from enginery.core.stage import run_stage
from enginery.engines import build_engine


def build(precision: str, converted: Path, target: Path, validation: Path, engine: Path) -> None:
    """Write the engine's files and engine.json."""
    params = load_params()
    record = build_engine(
        precision,
        converted / "model.onnx",
        Target.read(target),
        params.build,
        Manifest.read(validation / "manifest.json"),
        engine,
        params.model.scores,
    )
    executed = ", ".join(f"{count} {name}" for name, count in record.executed.items()) or "known once built on a GPU"
    print(f"{precision}: {file_size(record.bytes)} in {record.build_seconds:.1f} s; compute layers: {executed}")


if __name__ == "__main__":
    run_stage(build)

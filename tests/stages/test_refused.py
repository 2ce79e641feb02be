"""A precision that was not built stops no other one: the stages pass on why."""

from pathlib import Path

import pytest
from support.paths import ROOT

from enginewright.core.errors import CompilerError, EnginewrightError
from enginewright.core.params.all import Params
from enginewright.engine.machine import Target
from enginewright.engine.record import Refusal, read_engine
from enginewright.pipeline import build as stage
from enginewright.pipeline.build import BuildPaths, build
from enginewright.pipeline.engine import ValidatePaths, trace, validate
from enginewright.pipeline.speed import BenchmarkPaths, benchmark

WHY = "TensorRT cannot build model.onnx: Networks with BF16 precision require hardware with BF16 support"
NOWHERE = Path("nowhere")
PARAMS = Params.read(ROOT / "params.yaml")


@pytest.fixture
def build_for(tmp_path, samples, machine, monkeypatch):
    """Run the stage for a target, with a compiler that refuses."""

    def run(precision, device, *capabilities, error=EnginewrightError):
        def refuse(*_):
            raise error(WHY)

        monkeypatch.setattr(stage, "build_engine", refuse)
        facts = machine.model_dump(include=Target.model_fields.keys()) | {"device": device}
        Target(**facts, capabilities=capabilities, or_newer=False).write(tmp_path / "target.json")
        paths = BuildPaths(NOWHERE, tmp_path / "target.json", samples.folder, *[NOWHERE] * 4, tmp_path / "engine")
        build(PARAMS, precision, paths)
        return tmp_path / "engine"

    return run


@pytest.mark.parametrize(
    ("precision", "capabilities", "without"),
    [
        ("bf16", ["7.5"], "7.5"),
        ("fp8", ["8.6"], "8.6"),
        ("fp8", ["8.0+"], "8.0+"),
        ("fp8", ["8.0", "8.6", "8.9"], "8.0, 8.6"),  # an engine for RTX is for all that are listed
        ("int4", ["7.5", "8.0"], "7.5"),
        ("nvfp4", ["8.9", "12.0"], "8.9"),
        ("mxfp8", ["9.0"], "9.0"),
    ],
)
def test_a_precision_that_a_gpu_lacks_is_recorded_and_passed_on(build_for, tmp_path, precision, capabilities, without):
    engine = build_for(precision, "cuda", *capabilities)
    refusal = Refusal(precision=precision, why=f"compute capability {without} does not have {precision}; {WHY}")
    with pytest.raises(EnginewrightError, match=f"{engine} has no engine: compute capability"):
        read_engine(engine)
    trace(PARAMS, precision, engine, NOWHERE, NOWHERE, tmp_path / "trace.json")
    written = tmp_path / "validation.json", tmp_path / "examples"
    validate(PARAMS, precision, ValidatePaths(engine, *[NOWHERE] * 4, *written))
    benchmark(PARAMS, precision, BenchmarkPaths(engine, *[NOWHERE] * 4, tmp_path / "benchmark"))
    for written in ("engine/refused.json", "trace.json", "validation.json", "benchmark/refused.json"):
        assert Refusal.read(tmp_path / written) == refusal


@pytest.mark.parametrize(
    ("precision", "device", "capability"),
    [("fp16", "cuda", "7.5"), ("bf16", "cuda", "8.0"), ("fp8", "cuda", "10.0"), ("fp8", "cpu", "avx2")],
)
def test_any_other_failure_to_build_is_an_error(build_for, precision, device, capability):
    with pytest.raises(EnginewrightError, match="require hardware"):
        build_for(precision, device, capability)


def test_a_compiler_that_fails_is_recorded_as_a_failure(build_for):
    """MobileNetV3 in int8 was one for TensorRT 10.6 on an H200, and no report of the others was made."""
    folder = build_for("int8", "cuda", "9.0", error=CompilerError)
    assert Refusal.read(folder / "refused.json") == Refusal(precision="int8", why=WHY, failed=True)

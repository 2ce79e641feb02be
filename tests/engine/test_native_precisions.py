import pytest

from enginewright.precision.native_precisions import NOT_AT_ALL, UNKNOWN, UNTRIED, executed_as


@pytest.mark.parametrize(
    ("capability", "native"),
    [
        ("7.5", {"fp32", "fp16", "int8"}),
        ("8.6", {"fp32", "fp16", "int8", "bf16", "int4"}),
        ("8.9", {"fp32", "fp16", "int8", "bf16", "int4", "fp8"}),
        ("12.0", {"fp32", "fp16", "int8", "bf16", "int4", "fp8"}),
    ],
)
def test_the_generation_of_a_gpu_decides_what_tensorrt_executes_on_it(machine, build, capability, native):
    gpu = machine.model_copy(update={"runtime": "tensorrt", "device": "cuda", "capability": capability})
    executed = executed_as(gpu, build)
    assert {name for name, kind in executed.items() if kind == name} == native
    assert {executed[name] for name in ("w8", "mxfp8", "nvfp4")} <= {UNTRIED, NOT_AT_ALL}
    assert executed["w8"] == UNTRIED


def test_what_tensorrt_executes_is_not_known_without_a_gpu(machine, build):
    builder = machine.model_copy(update={"runtime": "tensorrt_rtx", "device": "cuda", "capability": ""})
    assert set(executed_as(builder, build).values()) == {UNKNOWN}


def test_a_cpu_executes_what_its_engines_report(machine, build):
    """The instruction set of this machine's processor decides bf16; the others do not depend on it."""
    executed = executed_as(machine, build)
    assert executed["fp32"] == "fp32"
    assert executed["int8"] == "int8"
    assert [executed[name] for name in ("w8", "int4", "mxfp8", "nvfp4")] == ["w8", "int4", "fp32", "fp32"]
    assert executed["bf16"] in ("bf16", "fp32")
    assert (executed["bf16"] == "bf16") >= ("avx512_bf16" in machine.capability)

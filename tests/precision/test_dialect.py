import pytest

from enginewright.precision.dialect import Dialect, dialect_of


@pytest.mark.parametrize(
    ("runtime", "device", "capability", "rest", "largest_weight", "compiler", "exact_sums"),
    [
        ("tensorrt", "cuda", "9.0", "fp16", 127, "tensorrt", True),
        ("tensorrt_rtx", "cuda", "", "fp16", 127, "tensorrt", True),
        ("onnxruntime", "cuda", "9.0", "fp32", 127, "cuda", True),
        ("openvino", "cpu", "avx2 avx512f avx512_vnni", "fp32", 127, "cpu", True),
        ("openvino", "cpu", "avx2 avx_vnni", "fp32", 127, "cpu", True),
        ("openvino", "cpu", "avx2 avx512f amx_int8", "fp32", 127, "cpu", True),
        ("openvino", "cpu", "asimd asimddp", "fp32", 127, "cpu", False),
        ("openvino", "cpu", "avx2", "fp32", 64, "cpu", True),
        ("openvino", "cpu", "avx2 avx512f", "fp32", 64, "cpu", True),
        ("onnxruntime", "cpu", "avx2", "fp32", 64, "cpu", False),
    ],
)
def test_a_dialect_is_what_the_compiler_of_a_machine_wants(
    runtime, device, capability, rest, largest_weight, compiler, exact_sums
):
    found = dialect_of(runtime, device, capability)
    facts = {"rest": rest, "largest_weight": largest_weight, "compiler": compiler}
    assert found == Dialect(**facts, by_channel=runtime == "openvino", exact_sums=exact_sums)


def test_openvino_adds_before_it_rounds_only_where_a_size_varies():
    assert not dialect_of("openvino", "cpu", "avx512_vnni", varies=False).exact_sums
    assert dialect_of("tensorrt", "cuda", "9.0", varies=False).exact_sums

import pytest

from enginery.quantization.dialect import Dialect, dialect_of


@pytest.mark.parametrize(
    ("runtime", "device", "capability", "rest", "largest_weight", "unsigned"),
    [
        ("tensorrt", "cuda", "9.0", "fp16", 127, False),
        ("tensorrt_rtx", "cuda", "", "fp16", 127, False),
        ("onnxruntime", "cuda", "9.0", "fp32", 127, False),
        ("openvino", "cpu", "avx2 avx512f avx512_vnni", "fp32", 127, True),
        ("openvino", "cpu", "avx2 avx_vnni", "fp32", 127, True),
        ("openvino", "cpu", "avx2 avx512f amx_int8", "fp32", 127, True),
        ("openvino", "cpu", "asimd asimddp", "fp32", 127, True),
        ("openvino", "cpu", "avx2", "fp32", 64, True),
        ("openvino", "cpu", "avx2 avx512f", "fp32", 64, True),
        ("onnxruntime", "cpu", "avx2", "fp32", 64, True),
    ],
)
def test_a_dialect_is_what_the_compiler_of_a_machine_wants(runtime, device, capability, rest, largest_weight, unsigned):
    found = dialect_of(runtime, device, capability)
    assert found == Dialect(rest=rest, largest_weight=largest_weight, unsigned=unsigned)

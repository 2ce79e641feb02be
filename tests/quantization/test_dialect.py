import pytest

from enginery.quantization.dialect import dialect_of


@pytest.mark.parametrize(
    ("runtime", "device", "capability", "rest", "largest_weight"),
    [
        ("tensorrt", "cuda", "9.0", "fp16", 127),
        ("tensorrt_rtx", "cuda", "", "fp16", 127),
        ("onnxruntime", "cuda", "9.0", "fp32", 127),
        ("openvino", "cpu", "avx2 avx512f avx512_vnni", "fp32", 127),
        ("openvino", "cpu", "avx2 avx_vnni", "fp32", 127),
        ("openvino", "cpu", "avx2 avx512f amx_int8", "fp32", 127),
        ("openvino", "cpu", "asimd asimddp", "fp32", 127),
        ("openvino", "cpu", "avx2", "fp32", 64),
        ("openvino", "cpu", "avx2 avx512f", "fp32", 64),
        ("onnxruntime", "cpu", "avx2", "fp32", 64),
    ],
)
def test_a_dialect_is_what_the_compiler_of_a_machine_wants(runtime, device, capability, rest, largest_weight):
    found = dialect_of(runtime, device, capability)
    assert (found.rest, found.largest_weight) == (rest, largest_weight)

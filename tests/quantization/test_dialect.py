import pytest

from enginery.quantization.dialect import Dialect, dialect_of


@pytest.mark.parametrize(
    ("runtime", "device", "capability", "rest", "largest_weight", "compiler"),
    [
        ("tensorrt", "cuda", "9.0", "fp16", 127, "tensorrt"),
        ("tensorrt_rtx", "cuda", "", "fp16", 127, "tensorrt"),
        ("onnxruntime", "cuda", "9.0", "fp32", 127, "cuda"),
        ("openvino", "cpu", "avx2 avx512f avx512_vnni", "fp32", 127, "cpu"),
        ("openvino", "cpu", "avx2 avx_vnni", "fp32", 127, "cpu"),
        ("openvino", "cpu", "avx2 avx512f amx_int8", "fp32", 127, "cpu"),
        ("openvino", "cpu", "asimd asimddp", "fp32", 127, "cpu"),
        ("openvino", "cpu", "avx2", "fp32", 64, "cpu"),
        ("openvino", "cpu", "avx2 avx512f", "fp32", 64, "cpu"),
        ("onnxruntime", "cpu", "avx2", "fp32", 64, "cpu"),
    ],
)
def test_a_dialect_is_what_the_compiler_of_a_machine_wants(runtime, device, capability, rest, largest_weight, compiler):
    found = dialect_of(runtime, device, capability)
    by_channel = runtime == "openvino"
    assert found == Dialect(rest=rest, largest_weight=largest_weight, compiler=compiler, by_channel=by_channel)

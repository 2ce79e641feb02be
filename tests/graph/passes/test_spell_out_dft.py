import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.pass_checks import count_types, model_of_text, output_of, round_trip, session_of

from enginewright.graph.passes.for_one_compiler import spell_out_dft


def model(size, settings, axis=-2, length=None):
    given = {"axis": np.array(axis)} | ({} if length is None else {"length": np.array(length)})
    nodes = f"y = DFT <{settings}> (input, {'length' if length else ''}, axis)"
    return model_of_text(f"g (float[batch,6,{size}] input) => (float[] y) {{ {nodes} }}", given)


def spelled_out(before):
    after = ir.from_proto(before)
    assert spell_out_dft(after)
    onnx.checker.check_model(ir.to_proto(after), full_check=True)
    return ir.to_proto(after)


@pytest.mark.parametrize("axis", [1, 2, -2, -3])
@pytest.mark.parametrize(
    ("size", "settings"),
    [("8,1", "onesided = 1"), ("8,1", "onesided = 0"), ("8,2", "inverse = 0"), ("8,2", "inverse = 1")],
)
@pytest.mark.parametrize("length", [None, 5, 11])
def test_a_transform_becomes_a_product(size, settings, axis, length):
    before = model(size, settings, axis, length)
    after = spelled_out(before)
    assert "DFT" not in count_types(after)
    wanted = output_of(before, 3)
    assert output_of(after, 3) == pytest.approx(wanted, abs=1e-4)  # ONNX Runtime's own transforms are off by 1e-5


def test_what_pytorch_exports_for_irfft_becomes_a_product():
    """It is inverse and one-sided, and returns numbers that are real."""
    after = spelled_out(model("5,2", "inverse = 1, onesided = 1", 2, 8))
    numbers = np.random.default_rng(0).normal(size=(3, 6, 5, 2)).astype(np.float32)
    wanted = np.fft.irfft(numbers[..., 0] + 1j * numbers[..., 1], 8)
    assert session_of(after).run(None, {"input": numbers})[0][..., 0] == pytest.approx(wanted, abs=1e-5)


def test_a_transform_of_an_unknown_length_stays():
    before = model("n,1", "onesided = 1")
    after = ir.from_proto(before)
    assert not spell_out_dft(after)
    assert ir.to_proto(after) == round_trip(before)

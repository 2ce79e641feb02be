import re
import struct

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.precision.calibration.cache import HEADER, read_cache, write_cache

LEVELS = 127


def cache_of(folder, *lines, header="TRT-101601-EntropyCalibration2", newline="\n"):
    path = folder / "calibration.cache"
    path.write_bytes(newline.join([header, *lines, ""]).encode())
    return path


def test_a_known_line_is_read_as_its_known_range(tmp_path):
    assert read_cache(cache_of(tmp_path, "input: 3f810204")) == {"input": pytest.approx(128, rel=1e-7)}


def test_a_known_range_is_written_as_its_known_line(tmp_path):
    write_cache({"input": 128.0}, tmp_path / "cache")
    assert (tmp_path / "cache").read_text() == "TRT-101601-EntropyCalibration2\ninput: 3f810204\n"


def test_what_is_written_is_read_back_to_the_last_bit_of_float32(tmp_path):
    amax = {"a": 1.0, "b": 0.1, "c": 3.4e38, "d": 1e-30, "e": 6.0}
    write_cache(amax, tmp_path / "cache")
    scales = {name: struct.unpack(">f", struct.pack(">f", value / LEVELS))[0] for name, value in amax.items()}
    assert read_cache(tmp_path / "cache") == {name: scale * LEVELS for name, scale in scales.items()}


def test_a_cache_that_is_read_and_written_again_does_not_change(tmp_path):
    cache = cache_of(tmp_path, "a: 3c010a14", "b: 3f810204", "c: 00800000", "d: 7f000000", header=HEADER)
    write_cache(read_cache(cache), tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == cache.read_text()


@pytest.mark.parametrize(
    "name",
    [
        "layer1.0:conv",
        "input_1:0",
        "a: b",
        "(Unnamed Layer* 5) [Fully Connected]_output",
        "(Unnamed Layer* 28) [TopK]_output_1",
        "/head/Gemm_output_0",
        "model/conv1/BiasAdd;StatefulPartitionedCall/model/conv1",
        "größe",
    ],
)
def test_names_may_hold_colons_spaces_and_parentheses(tmp_path, name):
    write_cache({name: 128.0, "other": 1.0}, tmp_path / "cache")
    assert list(read_cache(tmp_path / "cache")) == [name, "other"]


@pytest.mark.parametrize(
    "header",
    [
        "TRT-7000-MinMaxCalibration",
        "TRT-8401-MinMaxCalibration",
        "TRT-8501-EntropyCalibration2",
        "TRT-8601-EntropyCalibration2",
        "TRT-100300-EntropyCalibration",
        "TRT-100500-EntropyCalibration2",
        "TRT-8601-EntropyCalibration2 ",
        "TRT-8XXX-EntropyCalibration2",
    ],
)
def test_headers_of_other_versions_and_calibrators_are_accepted(tmp_path, header):
    assert list(read_cache(cache_of(tmp_path, "x: 3f810204", header=header))) == ["x"]


def test_hex_may_lack_its_leading_zeros_and_use_capitals(tmp_path):
    """0x00ffffff is the float32 2**-126 * (2 - 2**-23)."""
    wanted = 2.0**-126 * (2 - 2.0**-23) * LEVELS
    assert read_cache(cache_of(tmp_path, "x: FFFFFF")) == {"x": wanted}


def test_windows_line_ends_and_blank_lines_are_accepted(tmp_path):
    cache = cache_of(tmp_path, "a: 3f810204", "", "b: 3f810204", newline="\r\n")
    assert list(read_cache(cache)) == ["a", "b"]


def test_a_line_may_end_in_blanks(tmp_path):
    cache = cache_of(tmp_path, "a: 3f810204 ", "b: 3f810204\t", "c:3f810204")
    assert read_cache(cache) == dict.fromkeys("abc", pytest.approx(128, rel=1e-7))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_last_line_need_not_end(tmp_path, newline):
    cache = cache_of(tmp_path, "a: 3f810204", "b: 3f810204", newline=newline)
    cache.write_bytes(cache.read_bytes().removesuffix(newline.encode()))
    assert list(read_cache(cache)) == ["a", "b"]


def test_a_byte_order_mark_at_the_start_is_passed_over(tmp_path):
    """Some Windows editors leave one."""
    cache = cache_of(tmp_path, "a: 3f810204")
    cache.write_bytes(b"\xef\xbb\xbf" + cache.read_bytes())
    assert list(read_cache(cache)) == ["a"]


def test_a_cache_that_tensorrt_wrote_is_read(tmp_path):
    """TensorRT 8.5 wrote these lines of constants, unnamed layers and a second output."""
    cache = cache_of(
        tmp_path,
        "x: 4000890a",
        "/conv1/Conv_output_0: 3f9db09c",
        "(Unnamed Layer* 8) [Constant]_output: 39137939",
        "(Unnamed Layer* 9) [Matrix Multiply]_output: 3e74c2e0",
        "(Unnamed Layer* 28) [TopK]_output_1: 3be6d87f",
        header="TRT-8510-EntropyCalibration2",
    )
    amax = read_cache(cache)
    assert len(amax) == 5
    assert amax["x"] == pytest.approx(2.008364 * LEVELS, rel=1e-6)
    assert amax["(Unnamed Layer* 9) [Matrix Multiply]_output"] == pytest.approx(0.239025 * LEVELS, rel=1e-5)


def test_what_is_written_has_the_exact_form_that_tensorrt_reads(tmp_path):
    """TensorRT wants an ASCII header of a known kind, a blank after the colon, eight lower-case digits and newlines."""
    write_cache({"a": 1.0, "(Unnamed Layer* 5) [Fully Connected]_output": 1e-30, "dead": 0.0}, tmp_path / "cache")
    content = (tmp_path / "cache").read_bytes()
    assert re.fullmatch(rb"TRT-\d{4,6}-EntropyCalibration2\n([^\r\n]+: [0-9a-f]{8}\n){3}", content)


@pytest.mark.parametrize(
    "line",
    [
        "no colon here",
        "x: ",
        "x: hello",
        "x: 3f81020405",
        "x: 00000000",
        "x: bf810204",
        "x: 7f800000",
        "x: 7fc00000",
        "x: -3f81020",
        ": 3f810204",
    ],
)
def test_a_malformed_line_is_refused_with_its_number_and_text(tmp_path, line):
    cache = cache_of(tmp_path, "good: 3f810204", line)
    with pytest.raises(EnginewrightError, match=r"calibration\.cache, line 3: expected `name: scale`.*") as caught:
        read_cache(cache)
    assert repr(line) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"input: 3f810204\n", b"\x08\x07\x12\x04onnx"])
def test_a_file_that_is_no_cache_is_refused(tmp_path, content):
    path = tmp_path / "calibration.cache"
    path.write_bytes(content)
    with pytest.raises(EnginewrightError, match="is not a TensorRT calibration cache"):
        read_cache(path)


@pytest.mark.parametrize("amax", [0.0, 1e-45])
def test_a_tensor_that_is_always_zero_is_written_with_a_usable_scale(tmp_path, amax):
    write_cache({"dead": amax}, tmp_path / "cache")
    assert read_cache(tmp_path / "cache")["dead"] == pytest.approx(1.0, rel=1e-6)

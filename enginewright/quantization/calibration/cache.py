"""Read and write TensorRT's calibration cache: a header, then `name: scale` with a float32 as big-endian hex."""

import struct
from collections.abc import Mapping
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_file
from enginewright.core.precisions import PRECISIONS

LEVELS = PRECISIONS["int8"].largest  # the number that stands for the end of a range
HEADER = "TRT-101601-EntropyCalibration2"  # as TensorRT 10.16.1 writes it; readers check the kind, not the number
TINY = 1e-36  # counts as zero, since float32 holds few bits of its scale


def write_cache(amax: Mapping[str, float], path: Path) -> None:
    """Write a line for each tensor. One that is always zero gets the range 1, since readers fail on a scale of 0."""
    ranges = {name: value if value > TINY else 1.0 for name, value in amax.items()}
    lines = [f"{name}: {struct.pack('>f', value / LEVELS).hex()}" for name, value in ranges.items()]
    with new_file(path) as temporary:
        temporary.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")


def read_cache(path: Path) -> dict[str, float]:
    """Return the largest magnitude that each tensor keeps."""
    try:
        header, *lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, ValueError):
        raise EnginewrightError(f"{path} is not a TensorRT calibration cache: it is empty or not text") from None
    if not header.startswith("TRT-"):
        raise EnginewrightError(f"{path} is not a TensorRT calibration cache: its first line is {header[:40]!r}")
    amax = {}
    for where, line in [(f"{path}, line {number}", line) for number, line in enumerate(lines, start=2) if line.strip()]:
        name, _, text = line.rpartition(":")  # the last colon, since names may hold others
        try:
            scale = struct.unpack(">f", bytes.fromhex(text.strip().zfill(8)))[0]
        except (ValueError, struct.error):
            scale = float("nan")
        if not name.strip() or not 0 < scale < float("inf"):
            raise EnginewrightError(
                f"{where}: expected `name: scale` with a positive float32 in hex, got {line[:80]!r}"
            )
        amax[name.strip()] = float(scale) * LEVELS
    return amax

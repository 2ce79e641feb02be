"""Keep what a calibration finds: the ranges in TensorRT's calibration cache, and their origin. The cache is a header,
then `name: scale` with a float32 as big-endian hex."""

import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record, new_file, sha256
from enginewright.core.params.precisions import CalibrationParams
from enginewright.data.sample_set import SampleSet
from enginewright.graph.files import graph_sha256
from enginewright.precision.write_int8 import LARGEST, Bounds

HEADER = "TRT-101601-EntropyCalibration2"  # as TensorRT 10.16.1 writes it; readers check the kind, not the number
TINY = 1e-36  # counts as zero, since float32 holds few bits of its scale
SMALL = 1 << 16  # bytes of one sample's outputs


def write_cache(amax: Mapping[str, float], path: Path) -> None:
    """Write a line for each tensor. One that is always zero gets the range 1, since readers fail on a scale of 0."""
    ranges = {name: value if value > TINY else 1.0 for name, value in amax.items()}
    lines = [f"{name}: {struct.pack('>f', value / LARGEST).hex()}" for name, value in ranges.items()]
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
    for number, line in enumerate(lines, start=2):
        name, _, text = line.rpartition(":")  # the last colon, since names may hold others
        try:
            (scale,) = struct.unpack(">f", bytes.fromhex(text.strip().zfill(8)))
        except (ValueError, struct.error):
            scale = math.nan
        if name.strip() and 0 < scale < math.inf:
            amax[name.strip()] = float(scale) * LARGEST
        elif line.strip():
            raise EnginewrightError(
                f"{path}, line {number}: expected `name: scale` with a positive float32 in hex, got {line[:80]!r}"
            )
    return amax


MEASURED = "measured"  # here; else the name of a file
Channels = tuple[tuple[float, ...], tuple[float, ...]]  # the lowest and the largest number of each


class Calibration(Record):
    """The origin of the ranges in calibration.cache, which must not be used for anything else. The first four are None
    for a file from elsewhere."""

    model_sha256: str | None = None
    samples_sha256: str | None = None
    preprocessing_sha256: str | None = None
    samples: int | None = None
    source: str
    method: str
    bins: int
    percentile: float
    tools: dict[str, str] = Field(default_factory=dict)
    cache_sha256: str
    amax: dict[str, float]
    lowest: dict[str, float] = Field(default_factory=dict)  # values, 0 if none is negative; a file does not say
    channels: dict[str, Channels] = Field(default_factory=dict)  # of what depthwise convolutions alone read
    methods: dict[str, str] = Field(default_factory=dict)  # of `auto`: what was chosen for each tensor
    costs: dict[str, float] = Field(default_factory=dict)  # of `auto`: what each method costs, and what was chosen

    @property
    def origin(self) -> tuple[str, str | None]:
        """Return the hashes of the ranges, and of the graph that they were measured on, if that is known."""
        return self.cache_sha256, self.model_sha256

    @property
    def is_measured(self) -> bool:
        return self.source == MEASURED


def provided_provenance(params: CalibrationParams, cache: Path, amax: Mapping[str, float]) -> Calibration:
    """Describe a file from elsewhere, whose model and samples are unknown, so that only its tensors can be checked."""
    return Calibration(
        source=str(params.file),
        method="given",
        bins=params.bins,
        percentile=params.percentile,
        cache_sha256=sha256(cache),
        amax=dict(amax),
    )


def require_match(record: Calibration, cache: Path, model: Path, samples: SampleSet) -> None:
    """Refuse a calibration of another model, other samples or another preprocessing, whose scales would be wrong."""
    found = {
        "the model": (record.model_sha256, graph_sha256(model)),
        "the calibration samples": (record.samples_sha256, samples.list_sha256),
        "the preprocessing": (record.preprocessing_sha256, samples.preprocessing_sha256),
        "calibration.cache itself": (record.cache_sha256, sha256(cache)),
    }
    if differing := [
        f"{what} (recorded {recorded[:12]}, found {actual[:12]})"
        for what, (recorded, actual) in found.items()
        if recorded not in (None, actual)
    ]:
        raise EnginewrightError(
            f"{cache} was not made for what it is used for; what differs: {', '.join(differing)}. "
            "Run `dvc repro calibrate` to measure again"
        )


def require_tensors(record: Calibration, needed: list[str]) -> None:
    if missing := [name for name in needed if name not in record.amax]:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise EnginewrightError(
            f"the calibration ({record.source}) has no range for {len(missing)} of the {len(needed)} tensors that are "
            f"quantized: {some}. Was it made for another export of the model? Set calibration.file: null to measure"
        )


def with_ranges(known: Calibration, found: Mapping[str, Bounds]) -> Calibration:
    update = {
        "amax": known.amax | {name: each.amax for name, each in found.items()},
        "lowest": known.lowest | {name: each.lowest for name, each in found.items()},
        "channels": known.channels | channels_of({name: each.channels for name, each in found.items()}),
    }
    return known.model_copy(update=update)


def channels_of(found: Mapping[str, NDArray[np.floating] | None]) -> dict[str, Channels]:
    """Return the extremes of channels, where they are known, with as many digits as bytes need."""

    def rounded(values: NDArray[np.floating]) -> tuple[float, ...]:
        return tuple(float(f"{value:.4g}") for value in values)

    return {name: (rounded(each[0]), rounded(each[1])) for name, each in found.items() if each is not None}

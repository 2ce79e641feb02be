"""Record what a calibration was measured on, and refuse to use it for anything else."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from enginery.core.errors import EngineryError
from enginery.core.files import sha256
from enginery.core.params.calibration import CalibrationParams
from enginery.core.record import Record
from enginery.data.sample_set import SampleSet


class Calibration(Record):
    """The origin of the ranges in calibration.cache. The first four are None for a file from elsewhere."""

    model_sha256: str | None
    samples_sha256: str | None
    preprocessing_sha256: str | None
    samples: int | None
    source: str
    method: str
    bins: int
    percentile: float
    tools: dict[str, str]
    cache_sha256: str
    amax: dict[str, float]


MEASURED = "measured"


def measured_provenance(
    params: CalibrationParams, model: Path, samples: SampleSet, cache: Path, amax: Mapping[str, float]
) -> Calibration:
    return Calibration(
        model_sha256=sha256(model),
        samples_sha256=samples.list_sha256,
        preprocessing_sha256=samples.preprocessing_sha256,
        samples=len(samples),
        source=MEASURED,
        method=params.method,
        bins=params.bins,
        percentile=params.percentile,
        tools={"numpy": np.__version__, "onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__},
        cache_sha256=sha256(cache),
        amax=dict(amax),
    )


def provided_provenance(params: CalibrationParams, cache: Path, amax: Mapping[str, float]) -> Calibration:
    """Describe a file from elsewhere, whose model and samples are unknown, so that only its tensors can be checked."""
    return Calibration(
        model_sha256=None,
        samples_sha256=None,
        preprocessing_sha256=None,
        samples=None,
        source=str(params.file),
        method="given",
        bins=params.bins,
        percentile=params.percentile,
        tools={},
        cache_sha256=sha256(cache),
        amax=dict(amax),
    )


def require_match(record: Calibration, cache: Path, model: Path, samples: SampleSet) -> None:
    """Refuse a calibration of another model, other samples or another preprocessing, whose scales would be wrong."""
    found = {
        "the model": (record.model_sha256, sha256(model)),
        "the calibration samples": (record.samples_sha256, samples.list_sha256),
        "the preprocessing": (record.preprocessing_sha256, samples.preprocessing_sha256),
        "calibration.cache itself": (record.cache_sha256, sha256(cache)),
    }
    differing = [
        f"{what} (recorded {recorded[:12]}, found {actual[:12]})"
        for what, (recorded, actual) in found.items()
        if recorded is not None and recorded != actual
    ]
    if differing:
        raise EngineryError(
            f"{cache} was not made for what it is used for; what differs: {', '.join(differing)}. "
            "Run `dvc repro calibrate` to measure again"
        )


def require_tensors(cache: Path, amax: Mapping[str, float], needed: list[str]) -> None:
    missing = [name for name in needed if name not in amax]
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise EngineryError(
            f"{cache} has no range for {len(missing)} of the {len(needed)} tensors that are quantized: {some}. "
            "Was it made for another export of the model? Set calibration.file: null to measure"
        )

"""The check before bundling: the engine must be whole, have passed the gate, and be the one that was judged."""

from pathlib import Path
from typing import NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.engine.machine import Machine
from enginewright.engine.record import EngineRecord, read_engine, require_made_of
from enginewright.measure.records import Measurement, Measurements, Verdict
from enginewright.measure.timing import machine_problems

AGAIN = "run `dvc repro` to judge it"


class Passed(NamedTuple):
    """An engine that may be bundled, the graph that it was made of, and what was measured of it."""

    folder: Path
    onnx: Path
    record: EngineRecord
    measured: Measurement
    machine: Machine
    samples: Path  # of the validation
    doubts: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """Return what ONNX Runtime's CUDA provider must be told to run the engine as it was validated."""
        target = self.record.target
        if (target.runtime, target.device) != ("onnxruntime", "cuda"):
            return {}
        from onnx import load_model  # here: other engines are bundled without onnx

        from enginewright.engine.runtimes.onnxruntime import GRAPH, noted_settings

        return noted_settings(load_model(self.folder / GRAPH, load_external_data=False), self.record.build)


def require_passed(precision: str, artifacts: Path, reports: Path) -> Passed:
    """Return the engine of a precision, or refuse it and say why."""
    verdict = Verdict.read(reports / "verdict.json")
    if precision not in verdict.failures:
        judged = ", ".join(verdict.failures)
        raise EnginewrightError(f"{reports / 'verdict.json'} judges no precision '{precision}', only {judged}")
    if why := verdict.failures[precision]:
        raise EnginewrightError(f"{precision} did not pass the gate and is not bundled: {', '.join(why)}")
    folder, onnx = artifacts / "engines" / precision, artifacts / "converted" / precision / "model.onnx"
    record = read_engine(folder)
    if not onnx.is_file():
        raise EnginewrightError(f"{onnx} is missing: run `dvc repro` to make it, or `dvc checkout` to restore it")
    require_made_of(record, precision, onnx)
    measurements = Measurements.read(reports / "measurements.json")
    measured = next((each for each in measurements.precisions if each.precision == precision), None)
    if measured is None:
        raise EnginewrightError(f"{reports / 'measurements.json'} knows no {precision}: {AGAIN}")
    # A report of yesterday says nothing about another engine.
    if measured.validation.engine != record.identity:
        raise EnginewrightError(f"{folder} is not the engine that the report judges: {AGAIN}")
    if measured.validation.broken:  # verdict.json can be of another run than measurements.json
        raise EnginewrightError(f"{record.precision} broke its thresholds: {', '.join(measured.validation.broken)}")
    if why := measured.validation.not_enough_samples:
        raise EnginewrightError(f"{record.precision} may break its thresholds and is not bundled: {', '.join(why)}")
    samples, doubts = artifacts / "samples" / "validation", doubts_of(verdict, record, measured)
    return Passed(folder, onnx, record, measured, measurements.machine, samples, doubts)


def doubts_of(verdict: Verdict, record: EngineRecord, measured: Measurement) -> tuple[str, ...]:
    """Return what the report warns of about a precision that passed: what it ran as, too few samples, a race that could
    not tell engines apart, and what disturbed the machine while this one was timed."""
    precision, timed = record.precision, measured.benchmark
    found = [f"{precision} ran as {record.ran_as} where it was judged, and is never recommended"] * bool(record.ran_as)
    few = dict.fromkeys((*verdict.unsure.get(precision, ()), *measured.validation.unsure))
    found += [f"not sure, the samples are too few: {why}" for why in few]
    found += [verdict.doubt.rstrip(".")] * bool(verdict.doubt)
    return (*found, *(f"its timings may be off: {why}" for why in machine_problems(timed)))

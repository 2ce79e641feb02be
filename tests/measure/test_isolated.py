"""Measurements of a contender in a process that holds nothing else."""

import subprocess
import sys

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import BenchmarkParams
from enginewright.engine.machine import Moments
from enginewright.measure import benchmark as module
from enginewright.measure.benchmark import isolated, measure_engine
from enginewright.measure.records import Isolated, PeakMemory


@pytest.fixture
def params():
    return BenchmarkParams(batches=(2, 8), seconds=0.01, baselines=("eager",), requests=(1,), confidence=0.95, seed=0)


@pytest.fixture
def machine_file(machine, tmp_path):
    machine.write(tmp_path / "machine.json")
    return tmp_path / "machine.json"


def test_on_a_cpu_only_the_memory_is_measured(built, machine_file, samples, inference, params):
    found = isolated(measure_engine, samples.cycled(8), built, machine_file, samples.folder, inference, params)
    assert 20 < found.memory.host < 2000, "MB of a process that holds OpenVINO and not PyTorch"
    assert found.memory.device is None
    assert found.calls == found.compute == {}, "no device has a clock of its own"


def test_an_engines_process_does_not_import_pytorch():
    program = "import enginewright.measure.benchmark, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_record_keeps_compute_times_by_batch_size():
    calls = tuple(Moments(0, 0.1, 0, 1, 1 + compute, 9) for compute in (0.5, 0.002, 0.001))
    record = Isolated(memory=PeakMemory(host=1.0, device=2.0), calls={1: calls, 8: calls[:1]})
    assert Isolated.model_validate_json(record.model_dump_json()) == record
    assert record.compute == pytest.approx({1: 2, 8: 500})


def test_calls_after_the_warm_up_are_kept():
    moments = iter(Moments(*[number] * 6) for number in range(1_000_000))
    calls = module._clocked(lambda: next(moments), 0.01)
    assert 2 < calls[0].done < calls[-1].done
    assert len(module._clocked(lambda: Moments(*[0] * 6), 0)) == 1


def test_an_error_in_the_process_is_reported(built, machine_file, samples, inference, params):
    missing = samples.folder / "nowhere"
    with pytest.raises(EnginewrightError, match=f"{missing}"):
        isolated(measure_engine, samples.cycled(8), built, machine_file, missing, inference, params)

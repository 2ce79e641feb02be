"""Measurements of a contender in a process that holds nothing else."""

import subprocess
import sys

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import BenchmarkParams
from enginewright.measure.benchmark import isolated, measure_engine


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
    assert found.compute == {}, "no device has a clock of its own"


def test_an_engines_process_does_not_import_pytorch():
    program = "import enginewright.measure.benchmark, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_an_error_in_the_process_is_reported(built, machine_file, samples, inference, params):
    missing = samples.folder / "nowhere"
    with pytest.raises(EnginewrightError, match=f"{missing}"):
        isolated(measure_engine, samples.cycled(8), built, machine_file, missing, inference, params)

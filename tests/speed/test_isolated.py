"""A contender in a process of its own."""

import subprocess
import sys

import pytest

from enginery.core.errors import EngineryError
from enginery.core.params.benchmark import BenchmarkParams
from enginery.speed import isolated as module
from enginery.speed.isolated import measure_engine_isolated
from enginery.speed.records import Isolated, PeakMemory


@pytest.fixture
def params():
    return BenchmarkParams(batches=(2, 8), seconds=0.01, baselines=("eager",), requests=(1,), confidence=0.95, seed=0)


@pytest.fixture
def described(machine, tmp_path):
    machine.write(tmp_path / "machine.json")
    return tmp_path / "machine.json"


def test_on_a_cpu_it_is_its_memory_alone(built, described, samples, inference, params):
    found = measure_engine_isolated(built, described, samples.folder, inference, params)
    assert 20 < found.memory.host < 2000, "megabytes of a process with OpenVINO in it, and without PyTorch"
    assert found.memory.device is None
    assert found.compute == {}, "no device has a clock of its own"


def test_no_engine_is_charged_for_pytorch():
    program = "import enginery.speed.isolated, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_what_a_gpu_took_comes_through_by_batch_size():
    told = Isolated(memory=PeakMemory(host=1.0, device=2.0), compute={1: 0.5, 8: 1.25})
    assert Isolated.model_validate_json(told.model_dump_json()) == told


def test_its_time_is_that_of_the_compute():
    answers = iter([0.5, *[0.002] * 100_000])
    assert module._milliseconds(lambda: next(answers), 0.01) == pytest.approx(2)


def test_what_goes_wrong_there_is_told_here(built, described, samples, inference, params):
    missing = samples.folder / "nowhere"
    with pytest.raises(EngineryError, match=r"in a process of its own failed with exit code 1: .*nowhere"):
        measure_engine_isolated(built, described, missing, inference, params)

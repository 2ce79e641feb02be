import os
from types import SimpleNamespace

import pynvml
import pytest

from enginewright.engine import gpu
from enginewright.engine.gpu import GpuSample, GpuSampler, process_megabytes


def sampler_of(*samples):
    """Make a sampler that has finished sampling, without a GPU."""
    sampler = object.__new__(GpuSampler)
    sampler.samples = list(samples)
    return sampler


def sample(clock=1500, memory_clock=2600, power=300.0, temperature=50, throttled=""):
    return GpuSample(0.0, clock, memory_clock, power, temperature, throttled)


def test_conditions_are_the_range_and_the_median_of_the_samples():
    conditions = sampler_of(
        sample(clock=1980, power=650.06, temperature=60),
        sample(clock=345, power=99.94, temperature=41, memory_clock=2619),
        sample(clock=1755, power=700.0, temperature=65),
    ).conditions()
    assert conditions.samples == 3
    assert (conditions.clock_low, conditions.clock_median, conditions.clock_high) == (345, 1755, 1980)
    assert (conditions.power_median, conditions.power_high) == (650.1, 700.0)
    assert conditions.memory_clock == 2619
    assert conditions.temperature_high == 65
    assert conditions.throttled == {}


def test_the_median_of_an_even_number_lies_between_the_middle_two():
    conditions = sampler_of(*(sample(clock=clock, power=clock / 10) for clock in (1000, 1200, 1301, 1900))).conditions()
    assert conditions.clock_median == 1250
    assert conditions.power_median == pytest.approx(125.05, abs=0.051)


def test_a_single_sample_is_all_there_is():
    conditions = sampler_of(sample(clock=1500, throttled="power cap")).conditions()
    assert (conditions.clock_low, conditions.clock_median, conditions.clock_high) == (1500, 1500, 1500)
    assert conditions.throttled == {"power cap": 1.0}


def test_each_reason_to_throttle_has_its_share_of_the_samples():
    conditions = sampler_of(
        sample(throttled="power cap"),
        sample(throttled="power cap+thermal"),
        sample(),
        sample(throttled="hardware power brake+power cap"),
        sample(),
        sample(),
    ).conditions()
    assert conditions.throttled == {"power cap": 0.5, "thermal": 0.167, "hardware power brake": 0.167}


@pytest.mark.parametrize("reason", gpu.THROTTLE_REASONS)
def test_the_driver_library_knows_every_reason(reason):
    """Each reason is a single bit, and no two share one."""
    bits = {name: getattr(pynvml, flag) for name, flag in gpu.THROTTLE_REASONS.items()}
    assert bits[reason].bit_count() == 1
    assert list(bits.values()).count(bits[reason]) == 1


def test_idling_is_no_throttling():
    idle = {pynvml.nvmlClocksEventReasonGpuIdle, pynvml.nvmlClocksEventReasonNone}
    assert not idle & {getattr(pynvml, flag) for flag in gpu.THROTTLE_REASONS.values()}


@pytest.fixture
def asked(monkeypatch):
    """Let NVML answer for one GPU, and return the addresses that it is asked for."""
    handles = []
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByPciBusId": lambda address: handles.append(address) or "handle",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    monkeypatch.setattr(gpu, "bus_address", lambda: "0000:C1:00.0")
    return handles


@pytest.mark.parametrize(
    ("processes", "megabytes"),
    [
        ([(os.getpid(), 512_000_000), (1, 900_000_000)], 512.0),
        ([(1, 900_000_000)], None),
        ([(os.getpid(), None)], None),
        ([], None),
    ],
    ids=["this and another", "another only", "hidden by the driver", "none"],
)
def test_a_process_is_charged_for_its_own_memory_only(asked, monkeypatch, processes, megabytes):
    running = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: running)
    assert process_megabytes() == megabytes
    assert set(asked) == {"0000:C1:00.0"}  # with several GPUs, CUDA_VISIBLE_DEVICES renumbers CUDA's and not NVML's


def test_a_sampler_samples_until_its_block_ends(asked, monkeypatch):
    clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}
    reasons = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    monkeypatch.setattr(gpu, "SECONDS_BETWEEN_SAMPLES", 0.001)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda handle: reasons)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetClockInfo", lambda handle, kind: clocks[kind])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda handle: 698_765)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", lambda handle, sensor: 57)
    with GpuSampler() as sampler:
        while len(sampler.samples) < 3:
            assert sampler._thread.is_alive()
    taken = len(sampler.samples)
    assert not sampler._thread.is_alive()
    conditions = sampler.conditions()
    assert conditions.samples == taken
    assert (conditions.clock_low, conditions.clock_high, conditions.memory_clock) == (1980, 1980, 2619)
    assert (conditions.power_high, conditions.temperature_high) == (698.8, 57)
    assert conditions.throttled == {"power cap": 1.0}
    assert [sample.seconds for sample in sampler.samples] == sorted(sample.seconds for sample in sampler.samples)

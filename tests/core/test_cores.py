"""The cores that may be used, by quotas in both versions of control groups, and threads beside busy programs."""

import os
import subprocess
import sys

import pytest

from enginewright.core import cores
from enginewright.core.cores import Usage, read_usage, share_cores, threads_in_words, usable_cores, working_threads

AVAILABLE = 8


@pytest.fixture
def grouped(tmp_path, monkeypatch):
    """Put this process into the control groups that these lines of /proc name."""

    def at(*lines):
        own = tmp_path / "own"
        own.write_text("".join(f"{line}\n" for line in lines))
        monkeypatch.setattr(cores, "OWN_GROUPS", own)
        monkeypatch.setattr(cores, "GROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(AVAILABLE)))
        return tmp_path / "cgroup"

    return at


def second(group, quota, throttled=0):
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.max").write_text(f"{quota} 100000\n")
    (group / "cpu.stat").write_text(f"usage_usec 77\nnr_periods 5\nnr_throttled 2\nthrottled_usec {throttled}\n")


def first(group, quota, throttled=0):
    group.mkdir(parents=True, exist_ok=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("50000\n")
    (group / "cpu.stat").write_text(f"nr_periods 5\nnr_throttled 2\nthrottled_time {throttled}\n")


@pytest.mark.parametrize(
    ("quota", "cores"), [("max", 8), (200000, 2), (399999, 3), (50000, 1), (1600000, 8)],
    ids=["none", "whole", "part", "less than one", "more than there are"],
)  # fmt: skip
def test_a_quota_leaves_whole_cores(grouped, quota, cores):
    second(grouped("0::/"), quota)
    assert usable_cores() == cores


def test_the_tightest_of_the_groups_around_it_counts(grouped):
    groups = grouped("0::/kubepods/pod/container")
    second(groups / "kubepods", 600000, throttled=1_000_000)
    second(groups / "kubepods" / "pod", 300000, throttled=500_000)
    second(groups / "kubepods" / "pod" / "container", "max")
    second(groups / "another", 100000, throttled=9_000_000)
    assert (usable_cores(), read_usage().throttled) == (3, 1.5)


def test_a_container_sees_its_own_group_as_the_root_even_if_its_name_is_the_one_outside(grouped):
    second(grouped("0::/docker/0123"), 400000)
    assert usable_cores() == 4


@pytest.mark.parametrize("mounted", ["cpu", "cpu,cpuacct"])
def test_the_first_version_of_control_groups(grouped, mounted):
    groups = grouped("3:cpuset:/", f"1:{mounted}:/docker/0123", "0::/")
    first(groups / "cpu" / "docker" / "0123", 125000, throttled=250_000_000)
    first(groups / "cpu", -1)
    assert (usable_cores(), read_usage().throttled) == (2, 0.25)


@pytest.mark.parametrize("hidden", [False, True], ids=["none", "hidden"])
def test_no_control_groups_at_all(grouped, hidden):
    grouped()
    if hidden:
        cores.OWN_GROUPS.unlink()
    assert (usable_cores(), read_usage().throttled) == (AVAILABLE, 0.0)


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("5,2", 5), ("", 4), ("0", 4), ("many", 4)])
def test_the_users_number_of_threads_is_obeyed(monkeypatch, given, threads):
    monkeypatch.setattr("enginewright.core.cores.usable_cores", lambda: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert working_threads() == threads


def test_what_the_user_says_of_threads_is_kept(monkeypatch):
    monkeypatch.setattr("enginewright.core.cores.usable_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    share_cores()
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("4", "active")


@pytest.mark.parametrize(
    ("given", "busy", "said"),
    [
        ("4", 0.2, None),
        ("4", 2.0, "4 threads for 4 cores; other programs keep 2.0 of them busy"),
        ("1", 0.0, "1 thread for 4 cores"),
    ],
)
def test_a_line_says_who_shares_the_cores(monkeypatch, given, busy, said):
    monkeypatch.setattr("enginewright.core.cores.usable_cores", lambda: 4)
    monkeypatch.setattr("enginewright.core.cores.read_usage", lambda: Usage(1.0, busy, 0.0, 0.0, 0.0))
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert threads_in_words(Usage(0.0, 0.0, 0.0, 0.0, 0.0)) == said


TRAINS = """
import os, time
os.sched_setaffinity(0, {cores})
from enginewright.core.cores import share_cores
share_cores()
import torch
from torch import nn
threads, model = torch.get_num_threads(), nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(16)))
def seconds(began):
    model(images).square().mean().backward()
    return time.perf_counter() - began
images = torch.randn(8, 16, 32, 32)
def middle(count):
    torch.set_num_threads(count)
    return sorted(seconds(time.perf_counter()) for _ in range(12))[6]
alone = middle(1)  # before there are other threads
print(threads, middle(threads) / alone)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it needs two cores, one of which is kept busy")
def test_a_busy_core_does_not_stall_the_threads_on_others():
    """With threads that spin, a step took eight times as long as with one thread."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    without = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    command = [sys.executable, "-c", TRAINS.format(cores=cores)]
    busy = f"import os\nos.sched_setaffinity(0, {cores[:1]})\nwhile True: pass"
    program = subprocess.Popen([sys.executable, "-c", busy])
    try:
        tried = []  # others may take the second core, too, which makes a step no faster
        while len(tried) < 10 and (not tried or tried[-1] >= 4):
            printed = subprocess.run(command, env=without, stdout=subprocess.PIPE, text=True, check=True).stdout
            threads, times = printed.split()
            assert threads == "2"
            tried.append(float(times))
    finally:
        program.kill()
        program.wait()
    assert tried[-1] < 4, tried

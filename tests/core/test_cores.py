"""The CPU quotas of containers, in the files of both versions of control groups."""

import pytest

from enginery.core import cores
from enginery.core.cores import throttled_seconds, usable_cores

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
    assert (usable_cores(), throttled_seconds()) == (3, 1.5)


def test_a_container_sees_its_own_group_as_the_root_even_if_its_name_is_the_one_outside(grouped):
    second(grouped("0::/docker/0123"), 400000)
    assert usable_cores() == 4


@pytest.mark.parametrize("mounted", ["cpu", "cpu,cpuacct"])
def test_the_first_version_of_control_groups(grouped, mounted):
    groups = grouped("3:cpuset:/", f"1:{mounted}:/docker/0123", "0::/")
    first(groups / "cpu" / "docker" / "0123", 125000, throttled=250_000_000)
    first(groups / "cpu", -1)
    assert (usable_cores(), throttled_seconds()) == (2, 0.25)


@pytest.mark.parametrize("hidden", [False, True], ids=["none", "hidden"])
def test_no_control_groups_at_all(grouped, hidden):
    grouped()
    if hidden:
        cores.OWN_GROUPS.unlink()
    assert (usable_cores(), throttled_seconds()) == (AVAILABLE, 0.0)

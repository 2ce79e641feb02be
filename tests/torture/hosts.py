"""Spread the pipeline over several hosts, each with a network of its own, and lose one.

`make torture` runs this: `python tests/torture/hosts.py`. Linux gives each host a network namespace, which a cable
joins to a switch in the middle, its own `/tmp`, and its own copy of the code. Only the host that runs `dvc repro` has
samples. Hosts share this machine's processors and kernel: this is no test of speed. It takes root, or a system that
lets users make namespaces, and the command `ip` (on Debian, the package iproute2).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.checkout import Project, checkout
from support.committed_project import tortured_project

from enginewright.core.files import sha256

OWN = ["unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
HEAD, PORT = "10.77.0.1", 6379
STAGES = ("reference", "calibrate", "validate@int8")
RESULTS = ("artifacts/reference", "artifacts/calibrated", "reports/validation/int8.json")
PATIENCE = {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "2000"}  # of the head, with lost hosts
MOVED = 100_000  # bytes that a host got, after which it is at work


class Host:
    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name, self.address, self.home, self.here = name, f"10.77.0.{number}", folder / name, folder / "here"
        self.code = self.home / "project"
        (self.home / "tmp").mkdir(parents=True)
        self.here.mkdir(exist_ok=True)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "cable", "netns", name)
        _run("ip", "link", "set", name, "master", "switch", "up")
        _run("ip", "-n", name, "addr", "add", f"{self.address}/24", "dev", "cable")
        for link in ("cable", "lo"):
            _run("ip", "-n", name, "link", "set", link, "up")

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a program in the host's project. It lies at one path on all hosts, as Ray looks for modules on a node
        where the program that asks has them: elsewhere each host would find those of the first."""
        within = f"mount --bind {self.home} {self.here} && mount --bind {self.home}/tmp /tmp && cd {self.here}/project"
        environment = os.environ | PATIENCE | {
            "PYTHONPATH": f"{self.here}/project", "TMPDIR": "/tmp",
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0",
        }  # fmt: skip
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, "sh", "-c", f'{within} && exec "$@"', "sh", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str) -> tuple[int, str]:
        started = self.start(*command)
        said, _ = started.communicate(timeout=900)
        return started.returncode, said

    def join(self, *settings: str) -> None:
        """Start Ray: the head's, or a node of the head."""
        code, said = self.run("ray", "start", f"--node-ip-address={self.address}", "--disable-usage-stats", *settings)
        if code:
            sys.exit(f"{self.name}: {said}")

    def unplug(self) -> None:
        _run("ip", "link", "set", self.name, "down")

    @property
    def got(self) -> int:
        """Return how many bytes came to the host."""
        about = json.loads(_run("ip", "-j", "-s", "-n", self.name, "link", "show", "cable"))
        return int(about[0]["stats64"]["rx"]["bytes"])


def hosts_around(folder: Path) -> dict[str, Host]:
    """Return hosts that have the code of a project and nothing else; the one called other has another version."""
    _run("mount", "-t", "tmpfs", "tmpfs", "/run")  # where `ip` keeps its namespaces
    _run("ip", "link", "add", "switch", "type", "bridge")
    _run("ip", "link", "set", "switch", "up")
    hosts = {name: Host(name, number, folder) for number, name in enumerate(("desk", "one", "two", "other"), 1)}
    for name in ("one", "two", "other"):
        checkout(hosts[name].code)
        shutil.rmtree(hosts[name].code / "data")
    with (hosts["other"].code / "enginewright" / "__init__.py").open("a") as file:
        file.write("# another version\n")
    return hosts


def spread_over(hosts: dict[str, Host], folder: Path) -> list[str]:
    """Return what went wrong."""
    desk, wrong = hosts["desk"], list[str]()
    project = Project(tortured_project(desk.code))
    project.set(**{"precisions.int8.from": "calibrated", "search": {}, "precisions.fp32": None})
    project.set(**{"samples.calibration": 640, "samples.validation": 640})
    # One thread, as each part has on a cluster: sums of several threads differ in their last bits.
    one_core = ("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
    # The engine is built on all cores, as hosts refuse one for another number.
    for command in (
        ("dvc", "repro", "validate@int8"),
        (*one_core, "dvc", "repro", "--force", "--single-item", *STAGES),
    ):
        code, said = desk.run(*command)
        if code:
            sys.exit(said)
    plain = digests(project.root)
    project.set(**{"cluster.address": f"{HEAD}:{PORT}"})
    desk.join("--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")
    for name in ("one", "two"):
        hosts[name].join(f"--address={HEAD}:{PORT}", "--num-cpus=1", '--resources={"alike": 1}')

    def check(what: str, asked: str, told: str | None = None, during: Host | None = None) -> None:
        project.set(**{"cluster.resource": asked})
        before = {name: host.got for name, host in hosts.items()}
        started = desk.start("dvc", "repro", "--force", "--single-item", *STAGES)
        while during and started.poll() is None and during.got - before[during.name] < MOVED:
            time.sleep(0.02)
        if during:
            during.unplug()
        said, _ = started.communicate(timeout=900)
        moved = ", ".join(f"{name} {(host.got - before[name]) / 1e6:.1f}" for name, host in hosts.items())
        if told is None:
            well = started.returncode == 0 and digests(project.root) == plain
        else:
            well = started.returncode != 0 and told in said and "Traceback" not in said
        print(f"{'as it should' if well else 'WRONG'}: {what}; MB that came to {moved}", flush=True)
        if told or not well:
            print("   ", next((line for line in said.splitlines() if told and told in line), said[-3000:]), flush=True)
        wrong.extend([] if well else [what])

    check("two hosts without samples: the same bytes", "alike")
    hosts["other"].join(f"--address={HEAD}:{PORT}", "--num-cpus=1", '--resources={"other": 1}')
    check(
        "a host with another version is refused", "other", f"the node {hosts['other'].address} of the cluster differs"
    )
    check("a host is lost during the work: the same bytes", "alike", during=hosts["two"])
    hosts["one"].unplug()
    check("all hosts are lost: an error", "alike", "cluster: ")
    return wrong


def digests(root: Path) -> dict[str, str]:
    """Return what is in the results. Validation names the engine by how long its build took, and that stays."""
    places = [root / name for name in RESULTS]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return {str(file.relative_to(root)): sha256(file) for file in files}


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inside", action="store_true", help="in namespaces already")
    if not parser.parse_args().inside:
        reached: Sequence[str] = [*OWN, sys.executable, __file__, "--inside"]
        sys.exit(subprocess.run(reached).returncode)
    with tempfile.TemporaryDirectory(prefix="hosts-", dir="/var/tmp") as folder:  # each host has another /tmp
        wrong = spread_over(hosts_around(Path(folder)), Path(folder))
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()

"""A target that ssh reaches: what is put there, which stages run there, and what comes back. The system's ssh and rsync
do it, with your keys, configuration and known hosts. A stage that runs there starts this module as its program."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from platformdirs import user_cache_path

from enginewright.core.errors import EnginewrightError, errors_in_words
from enginewright.core.files import ARTIFACTS, CURES, TUNED, Record, new_folder, sha256_of
from enginewright.core.installing import NAME, ROOT, how_to_install
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.process import TARGET
from enginewright.core.text import last_line
from enginewright.engine.machine import Machine
from enginewright.targets.file import Target

OPTIONS = (
    "BatchMode=yes", "ConnectTimeout=15", "ServerAliveInterval=5", "ServerAliveCountMax=6", "ControlMaster=auto",
    "ControlPersist=60",
)  # fmt: skip
BROKEN, NOT_FOUND = (255, 10, 12, 30, 35), (126, 127)  # exit codes of ssh and rsync, and of a shell
TRIES, SECONDS_BETWEEN_TRIES, SECONDS_TO_END = 20, 3.0, 5.0
FULL = "No space left on device"
Found = TypeVar("Found")


class _BrokenError(Exception):
    """Raised where the connection ends, with what ssh says of it."""


class Device(Record):
    """A target that was made ready, and how to reach it. Stages get it in their environment."""

    name: str
    ssh: str
    python: str
    control: str  # the socket of the one connection of this run
    node: str = ""
    home: str = ""  # the folder there of all that is ours
    project: str = ""  # the folder in it of this project
    packages: str = ""  # the folder in it of what Enginewright needs there

    def run(self, command: str, given: str = "") -> str:
        """Return what a command prints there."""
        return self._done([*self._ssh(), self.ssh, command], given)

    def of_python(self, *words: str) -> str:
        """Return the command that runs Python in the project's folder there."""
        path = ":".join(f"{self.home}/{each}" for each in (f"{self.project}/code", self.packages) if each)
        folder = shlex.quote(f"{self.home}/{self.project}/work")
        return f"cd {folder} && PYTHONPATH={shlex.quote(path)} exec {self.python} {shlex.join(words)}"

    def run_stage(self, *words: str) -> int:
        """Run a stage, and show what it says. It ends with its parent, which is of the connection."""
        command = [*self._ssh(), self.ssh, self.of_python("-m", "stages", *words)]
        code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
        if code in BROKEN:
            raise _BrokenError("the connection broke")
        return code

    def send(self, folder: Path, paths: Iterable[str], to: str) -> None:
        """Make these files and folders there as they are here."""
        self._copy("--delete", *(f"{folder}/./{path}" for path in paths), f"{self.ssh}:{self.home}/{to}/")

    def bring(self, paths: Iterable[str]) -> None:
        """Bring those of these paths that a stage has made there."""
        places = [f"{self.ssh}:{self.home}/{self.project}/work/./{path}" for path in paths]
        self._copy("--ignore-missing-args", *places, ".")

    def _copy(self, *words: str) -> None:
        self._done(["rsync", "-aRL", "--checksum", "--partial", "-e", shlex.join(self._ssh()), *words])

    def _done(self, command: list[str], given: str = "") -> str:
        done = subprocess.run(command, input=given, capture_output=True, text=True, errors="replace")
        said = last_line(done.stderr)
        if FULL in done.stderr:
            raise EnginewrightError(f"{self.ssh} is full: free space there")
        if done.returncode in BROKEN or done.returncode < 0:
            raise _BrokenError(said or "the connection broke")
        if done.returncode in NOT_FOUND:
            raise EnginewrightError(f"{self.ssh} cannot run it: {said}: name another Python as `python`")
        if done.returncode:
            raise EnginewrightError(f"{self.ssh}: {said or f'exit code {done.returncode}'}")
        return done.stdout

    def _ssh(self) -> list[str]:
        options = (*OPTIONS, f"ControlPath={self.control}")
        return ["ssh", "-T", *(word for each in options for word in ("-o", each))]

    def again(self, work: Callable[[], Found]) -> Found:
        """Do something, and once more where the connection breaks, as soon as there is one."""
        why = ""
        for _ in range(TRIES):
            try:
                return work()
            except _BrokenError as error:
                why = str(error)
                print(f"{self.name}: {why}; connecting again", file=sys.stderr, flush=True)
                time.sleep(SECONDS_BETWEEN_TRIES)
        raise EnginewrightError(f"{self.ssh} is gone: {why}; ask again to go on where it was")

    def close(self) -> None:
        """End the connection, and wait until it has gone: ssh answers before it takes its socket away."""
        subprocess.run([*self._ssh(), "-O", "exit", self.ssh], capture_output=True)
        until = time.monotonic() + SECONDS_TO_END
        while Path(self.control).exists() and time.monotonic() < until:
            time.sleep(0.01)


# Make a target ready.

LOOK = """\
import importlib.metadata as m, json, os, platform, shutil, sys
home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
home = os.path.join(home, "enginewright")
os.makedirs(os.path.join(home, "target"), exist_ok=True)
marks = {"python_version": "%d.%d" % sys.version_info[:2], "python_full_version": platform.python_version()}
marks.update(implementation_name=sys.implementation.name, platform_machine=platform.machine(), os_name=os.name)
marks.update(sys_platform=sys.platform, platform_system=platform.system())
installed = {d["Name"]: d["Version"] for d in (d.metadata for d in m.distributions()) if d["Name"]}
print(json.dumps({"node": platform.node(), "home": home, "environment": marks, "glibc": platform.libc_ver()[1],
    "free": shutil.disk_usage(home).free, "rsync": shutil.which("rsync"), "installed": installed}))
"""
DESCRIBE = """\
import json, sys
from enginewright.core.errors import errors_in_words
with errors_in_words():
    from enginewright.engine.runtimes import describe_machine, load_runtime
    found = [describe_machine(sys.argv[1]).model_dump(), load_runtime("onnxruntime").device()]
print(json.dumps(found))
"""
EXTRAS = ("", "device", "images", "onnxruntime")  # ours, as they contain each other
ALIKE = {"onnxruntime": "onnxruntime-gpu", "onnxruntime-gpu": "onnxruntime"}  # one is as good as the other
GLIBCS = (17, 28, *range(31, 41))  # of manylinux_2, for which uv resolves


class Looked(Record):
    """Hold what a target has."""

    node: str
    home: str
    environment: dict[str, str]  # as in markers of requirements
    glibc: str
    free: int
    rsync: str | None
    installed: dict[str, str]

    @property
    def in_words(self) -> str:
        return f"{self.environment['platform_machine']}, Python {self.environment['python_full_version']}"

    def lacking(self) -> list[str]:
        """Return the requirements that it does not meet itself."""
        there: dict[str, str] = {canonicalize_name(name): version for name, version in self.installed.items()}
        found = []
        for one in map(Requirement, metadata.requires(NAME) or []):
            name: str = canonicalize_name(one.name)
            environments = [{**self.environment, "extra": extra} for extra in EXTRAS]
            versions = [there[each] for each in (name, ALIKE.get(name)) if each in there]
            applies = one.marker is None or any(map(one.marker.evaluate, environments))
            if applies and name != NAME and not any(map(one.specifier.contains, versions)):
                found.append(f"{one.name}{one.specifier}")
        return found


@contextmanager
def reached(target: Target) -> Iterator[tuple[Device, Looked]]:
    """Connect and look. Disconnect at the end."""
    assert target.ssh, "the caller looked"
    with TemporaryDirectory(prefix="enginewright-", dir="/tmp") as scratch:  # a socket's path has 108 letters at most
        device = Device(name=target.name, ssh=target.ssh, python=target.python, control=f"{scratch}/ssh")
        try:
            looked = Looked.parse(device.run(f"{target.python} -", LOOK).encode(), f"what {target.ssh} says of itself")
            if looked.environment["sys_platform"] != "linux":
                raise EnginewrightError(f"{target.ssh} has {looked.environment['platform_system']}: Linux is needed")
            if tuple(map(int, looked.environment["python_version"].split("."))) < (3, 10):
                raise EnginewrightError(f"{target.ssh} has {looked.in_words}: name 3.10 or later as `python`")
            if not looked.rsync or not shutil.which("rsync"):
                where = "this machine" if looked.rsync else target.ssh
                raise EnginewrightError(f"{where} has no rsync: apt-get install rsync")
            yield device.model_copy(update={"node": looked.node, "home": looked.home}), looked
        except _BrokenError as error:
            key = f": look at its key once, by `ssh {target.ssh}`" if "Host key" in str(error) else ""
            raise EnginewrightError(f"{target.ssh} is not reached: {error}{key}") from None
        finally:
            device.close()


def made_ready(device: Device, looked: Looked, project: str) -> Device:
    """Put Enginewright there, and what the target lacks for it, as far as they are not there already."""
    ready = device.model_copy(update={"project": f"target/{project}"})
    device.run(f"mkdir -p {shlex.quote(f'{device.home}/{ready.project}/work')} {device.home}/packages")
    device.again(partial(device.send, ROOT, ("enginewright", "stages"), f"{ready.project}/code"))
    if lacking := looked.lacking():
        folder = _packages(lacking, looked)
        device.again(partial(device.send, folder.parents[1], (f"packages/{folder.name}",), "."))
        ready = ready.model_copy(update={"packages": f"packages/{folder.name}"})
    return ready


def _packages(lacking: list[str], looked: Looked) -> Path:
    """Return a folder of packages for the target, of which this machine may be of another kind."""
    version, machine = looked.environment["python_version"], looked.environment["platform_machine"]
    folder = user_cache_path(NAME) / "packages" / sha256_of([lacking, looked.glibc, version, machine])[:16]
    if folder.exists():
        return folder
    newest = max((each for each in GLIBCS if each <= int(looked.glibc.partition(".")[2] or 0)), default=GLIBCS[0])
    with new_folder(folder) as unfinished:
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(unfinished)]
        command += ["--python-version", version, "--python-platform", f"{machine}-manylinux_2_{newest}"]
        done = subprocess.run([*command, "--only-binary", ":all:", *lacking], capture_output=True, text=True)
        if done.returncode and "No module named uv" in done.stderr:
            raise EnginewrightError(f"run `{how_to_install('ssh')}`: uv finds the packages that the target lacks")
        if done.returncode:
            raise EnginewrightError(
                f"no packages for {looked.in_words} ({' '.join(done.stderr.split())[:600]}): install "
                f"{', '.join(lacking)} for its Python yourself"
            )
    return folder


def describe(device: Device, runtime: str) -> tuple[Machine, str]:
    """Return the machine that engines are built for there, and the device that ONNX Runtime has there."""
    said = device.again(partial(device.run, device.of_python("-c", DESCRIBE, runtime)))
    machine, of_onnxruntime = json.loads(last_line(said))
    return Machine(**machine), of_onnxruntime


def target_of_stages() -> Device | None:
    """Return the target that the engines of this process's stage are for, if it is not this machine."""
    given = os.environ.get(TARGET)
    return Device.parse(given.encode(), TARGET) if given else None


NOT_SENT = ("--precision", "--weights")  # no file, and what only PyTorch reads
FOUND = (CURES, TUNED)  # folders that stages add to
CODE = ARTIFACTS / "code"  # which says what each stage imports


def run_there(name: str, words: list[str]) -> int:
    """Run a stage there. Of the paths that it is given, it reads those that exist, and makes the others. What it finds
    of cures and tunings comes back, too."""
    device = target_of_stages()
    assert device, "the caller looked"
    given = {path: option for option, path in zip(words[::2], words[1::2], strict=True) if option not in NOT_SENT}
    there, code = [path for path in given if Path(path).exists()], CODE / f"{name}.json"
    of_task = json.loads(code.read_bytes())["task"] if code.exists() else ()  # the files of the user's own
    files = [str(PARAMS_FILE), *there, *(file for file in of_task if Path(file).exists()), *map(str, FOUND)]
    for folder in FOUND:
        folder.mkdir(exist_ok=True)

    def run() -> int:
        device.send(Path.cwd(), files, f"{device.project}/work")
        if not (failed := device.run_stage(name, *words)):
            made = (path for path, option in given.items() if option == "--plan" or path not in there)
            device.bring([*made, *map(str, FOUND)])
        return failed

    return device.again(run)


if __name__ == "__main__":
    with errors_in_words(f"{sys.argv[1]}: "):
        sys.exit(run_there(sys.argv[1], sys.argv[2:]))

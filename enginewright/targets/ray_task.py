"""Do one part of some work on a machine of the cluster."""

import hashlib
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from enginewright.core.cores import Work
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_folder
from enginewright.core.installing import installed_version

PACKAGE = Path(__file__).parents[1]
LIBRARIES = (
    "numpy", "pillow", "onnxruntime-gpu", "onnxruntime", "openvino", "torch", "torchvision", "tokenizers",
    "transformers", "timm", "tensorrt", "tensorrt-rtx", "scipy",
)  # fmt: skip
HERE = Path(tempfile.gettempdir()) / f"enginewright-cluster-{os.getuid()}"
SECONDS_UNUSED = 24 * 3600.0  # no part of a job takes so long


@cache
def this_node() -> dict[str, str]:
    """Return what runs here, since a result must not depend on which machine computed it: code, Python, the libraries
    that compute, and the processor, whose kind decides in which order sums are added."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(file.relative_to(PACKAGE).as_posix().encode())
        digest.update(file.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    found = {"Enginewright": f"code {digest.hexdigest()[:8]}", "Python": python}
    found |= {name: version for name in LIBRARIES if (version := installed_version(name))}
    return found | {"the processor": _processor()}


def _processor() -> str:
    """Return its name, and a digest of what it can do: virtual machines name several generations alike."""
    with suppress(OSError):
        core, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
        lines = [line.partition(":") for line in core.splitlines()]
        said = {name.strip(): value.strip() for name, _, value in lines}
        kind = repr([said.get(name) for name in ("vendor_id", "cpu family", "model", "flags")])
        return f"{said.get('model name', platform.machine())}, {hashlib.sha256(kind.encode()).hexdigest()[:8]}"
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class Job:
    """Some work, with references to the content of its files and code, by their places in the job's folder."""

    name: str
    work: Work[Any, Any]
    files: Mapping[str, Any]
    node: Mapping[str, str]
    threads: int

    @property
    def folder(self) -> Path:
        return HERE / self.name


_stack = ExitStack()  # of the work that this process does now
_doing: dict[str, Callable[[Any], Any]] = {}  # what does a part of it, by the job's name


def do_part(job: Job, part: Any) -> Any:
    """Do the part. A machine that is not like the one that asks is refused: its results could differ."""
    import ray

    here = this_node()
    if unlike := [name for name in {**job.node, **here} if job.node.get(name) != here.get(name)]:
        listed = ", ".join(f"{name} ({here.get(name, 'none')}, here {job.node.get(name, 'none')})" for name in unlike)
        raise EnginewrightError(
            f"the node {ray.get_runtime_context().worker.node_ip_address} of the cluster differs in {listed}: results "
            "would depend on which node computes what. Set it up from the same commit and requirements.lock, or choose "
            "nodes by cluster.resource"
        )
    if job.name not in _doing:  # the work is opened for its first part, and closed when other work begins
        _doing.clear()
        _stack.close()
        _lay_out(job, ray.get)
        if job.work.code:
            sys.path.insert(0, str(job.folder / "code"))
        files: dict[str, Any] = {name: job.folder / name / path.name for name, path in file_fields(job.work).items()}
        _doing[job.name] = _stack.enter_context(replace(job.work, **files).open(threads=job.threads))
    os.utime(job.folder)
    return _doing[job.name](part)


def forget(name: str) -> None:
    """Remove a job's files from this machine."""
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / f"{name}.lock").unlink(missing_ok=True)


def file_fields(work: Work[Any, Any]) -> dict[str, Path]:
    return {each.name: value for each in fields(work) if isinstance(value := getattr(work, each.name), Path)}


def _lay_out(job: Job, fetch: Callable[[Any], Any]) -> None:
    """Write the job's files once for all processes of this machine."""
    HERE.mkdir(mode=0o700, exist_ok=True)
    if HERE.stat().st_uid != os.getuid():
        raise EnginewrightError(f"{HERE} belongs to another user, who could change what is run from there: remove it")
    with FileLock(HERE / f"{job.name}.lock"):
        if job.folder.exists():
            return
        for path in HERE.iterdir():  # a driver that was killed could not have its files removed
            with suppress(FileNotFoundError):  # another process does the same
                if path.suffix != ".lock" and time.time() - path.stat().st_mtime > SECONDS_UNUSED:
                    forget(path.name)
        with new_folder(job.folder) as unfinished:
            for place, content in job.files.items():
                path = unfinished / place
                path.parent.mkdir(parents=True, exist_ok=True)
                np.asarray(fetch(content)).tofile(path)

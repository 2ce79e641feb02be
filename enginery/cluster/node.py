"""What must be alike on all machines of a cluster, so that a result does not depend on which machine computed it."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("numpy", "pillow", "onnxruntime-gpu", "onnxruntime", "openvino", "torch", "torchvision", "tokenizers")


@cache
def this_node() -> dict[str, str]:
    """Return what runs here: code, Python, the libraries that compute, and the processor, whose kind decides in which
    order sums are added."""
    found = {"Enginery": _digest_of_code(), "Python": ".".join(platform.python_version_tuple()[:2])}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found | {"the processor": _processor()}


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Name what is not the same on two machines, or return nothing. A version of Enginery is known by its code."""
    names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    return ", ".join(f"{name} ({found.get(name, 'none')}, here {wanted.get(name, 'none')})" for name in names)


def _digest_of_code() -> str:
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(file.relative_to(PACKAGE).as_posix().encode())
        digest.update(file.read_bytes())
    return f"code {digest.hexdigest()[:8]}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

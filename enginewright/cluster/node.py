"""Compare machines of a cluster: a result must not depend on which of them computed it."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
LIBRARIES = (
    "numpy", "pillow", "onnxruntime-gpu", "onnxruntime", "openvino", "torch", "torchvision", "tokenizers",
    "transformers", "timm", "tensorrt", "tensorrt-rtx", "scipy",
)  # fmt: skip


@cache
def this_node() -> dict[str, str]:
    """Return what runs here: code, Python, the libraries that compute, and the processor, whose kind decides in which
    order sums are added."""
    found = {"Enginewright": _digest_of_code(), "Python": ".".join(platform.python_version_tuple()[:2])}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found | {"the processor": _processor()}


def differences(wanted: Mapping[str, str], found: Mapping[str, str]) -> str:
    """Name what is not the same on two machines, or return nothing. A version of Enginewright is known by its code."""
    names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    return ", ".join(f"{name} ({found.get(name, 'none')}, here {wanted.get(name, 'none')})" for name in names)


def _digest_of_code() -> str:
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(file.relative_to(PACKAGE).as_posix().encode())
        digest.update(file.read_bytes())
    return f"code {digest.hexdigest()[:8]}"


def _processor() -> str:
    """Return its name, and a digest of what it can do: virtual machines name several generations alike."""
    with suppress(OSError):
        core, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
        lines = [line.partition(":") for line in core.splitlines()]
        said = {name.strip(): value.strip() for name, _, value in lines}
        kind = repr([said.get(name) for name in ("vendor_id", "cpu family", "model", "flags")])
        return f"{said.get('model name', platform.machine())}, {hashlib.sha256(kind.encode()).hexdigest()[:8]}"
    return platform.processor() or platform.machine()

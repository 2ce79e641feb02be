"""The versions of the libraries that shape a graph."""

import importlib.metadata
from contextlib import suppress

from enginery.core.record import Record


class Tools(Record):
    """The installed versions by library. A new version of one makes new files."""

    versions: dict[str, str]


TOOLS = (
    "numpy", "pillow", "scikit-learn", "torch", "torchvision", "onnx", "onnxscript", "onnxsim", "polygraphy",
    "onnxruntime-gpu", "onnxruntime", "nvidia-modelopt",
)  # fmt: skip


def describe_tools() -> Tools:
    versions = {}
    for tool in TOOLS:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[tool] = importlib.metadata.version(tool)
    return Tools(versions=versions)

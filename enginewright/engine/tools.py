"""The versions of the libraries that shape a graph."""

import importlib.metadata
from contextlib import suppress

from enginewright.core.record import Record


class Tools(Record):
    """The installed versions by library. A new version of one makes new files."""

    versions: dict[str, str]


TOOLS = (
    "numpy", "pillow", "scikit-learn", "torch", "torchvision", "onnx", "onnxscript", "onnxsim", "polygraphy",
    "onnxruntime-gpu", "onnxruntime", "nvidia-modelopt",
)  # fmt: skip


def describe_tools() -> Tools:
    return Tools(versions={tool: version for tool in TOOLS if (version := installed_version(tool))})


def installed_version(*distributions: str) -> str | None:
    """Return the version of the first of these distributions that is installed."""
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None

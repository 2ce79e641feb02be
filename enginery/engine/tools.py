"""The versions of the libraries that shape a graph."""

import importlib.metadata

from enginery.core.record import Record


class Tools(Record):
    """The installed versions by library. A new version of one makes new files."""

    versions: dict[str, str]


TOOLS = (
    "numpy", "pillow", "scikit-learn", "torch", "torchvision", "onnx", "onnxscript", "onnxsim", "polygraphy",
    "onnxruntime-gpu", "onnxruntime", "nvidia-modelopt",
)  # fmt: skip


def describe_tools() -> Tools:
    installed = {tool: _version(tool) for tool in TOOLS}
    return Tools(versions={tool: version for tool, version in installed.items() if version})


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

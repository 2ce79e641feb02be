"""The files of a graph: the ONNX file and, if the weights are too many for it, a file of weights beside it."""

import shutil
from pathlib import Path

from enginewright.core.files import sha256


def data_of(path: Path) -> Path:
    """Return where the weights of an ONNX file are, if they are not in it."""
    return path.with_name(f"{path.name}.data")


def graph_files(path: Path) -> list[Path]:
    return [path, data_of(path)] if data_of(path).exists() else [path]


def graph_sha256(path: Path) -> str:
    """Return the hash of the files one after the other: what `cat model.onnx* | sha256sum` prints."""
    return sha256(*graph_files(path))


def graph_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in graph_files(path))


def copy_graph(path: Path, folder: Path) -> Path:
    """Copy the files under their names, by which one refers to the other. Return the copy of the ONNX file."""
    for file in graph_files(path):
        shutil.copyfile(file, folder / file.name)
    return folder / path.name

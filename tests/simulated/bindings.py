"""NVIDIA's real Python bindings of TensorRT, loaded without TensorRT: over libraries whose functions give nothing."""

import ctypes
import importlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("stubs.c")
FOLDER = Path(__file__).resolve().parents[2] / ".venv" / "bindings"
LIBRARIES = ("libnvinfer.so.{}", "libnvinfer_plugin.so.{}", "libnvonnxparser.so.{}", "libcuda.so.1")


def load_bindings(version: str):
    """Load the bindings of one version: a process can have only one."""
    folder = FOLDER / f"tensorrt-{version}"
    if not (folder / "tensorrt_bindings").is_dir():
        raise RuntimeError(f"{folder} has no bindings of TensorRT {version}: `make test` installs them")
    for library in _stubs(version.split(".")[0]):
        ctypes.CDLL(str(library))
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module("tensorrt_bindings")
    finally:
        sys.path.remove(str(folder))
    if not module.__version__.startswith(f"{version}."):
        raise RuntimeError(f"this process already has TensorRT {module.__version__}, and {version} is asked for")
    return module


def _stubs(generation: str) -> list[Path]:
    """Compile the libraries once. The bindings find them by the names inside them."""
    folder = FOLDER / f"stubs-{generation}"
    libraries = [folder / name.format(generation) for name in LIBRARIES]
    for library in libraries:
        if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
            folder.mkdir(parents=True, exist_ok=True)
            _compile(library)
    return libraries


def _compile(library: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("simulating TensorRT needs a C compiler: install gcc")
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:  # another test may be doing the same
        made = Path(scratch) / library.name
        subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", made, SOURCE], check=True)
        made.replace(library)

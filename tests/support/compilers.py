"""Compile for the real TensorRT of this machine, with its headers and with the libraries that Python has loaded."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import ROOT

HEADERS = ("/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/local/tensorrt/include")
LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
CUDA = ("lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu")  # where a toolkit has libcudart
PLUGIN = Path(__file__).parent / "gelu_plugin.cu"


class Compilers(NamedTuple):
    """Folders for compilers. That of libraries has links under the names by which a linker and a program ask."""

    headers: Path
    libraries: Path
    toolkit: Path

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a program that was linked with the libraries."""
        known = os.environ.get("LD_LIBRARY_PATH")
        return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(self.libraries), known]))}


def find_compilers(folder: Path) -> Compilers:
    """Make the folder of libraries, or skip the test and say what is missing."""
    if "SIMULATED_TENSORRT" in os.environ:
        pytest.skip("the simulated TensorRT has no library that a program could be linked with")
    if not shutil.which("g++"):
        pytest.skip("needs g++: install it, as by `apt-get install g++`")
    toolkit, cudart = _toolkit()
    found = Compilers(_headers(), folder, toolkit)
    for name, library in {**_loaded_libraries(), "cudart": cudart}.items():
        (folder / f"lib{name}.so").symlink_to(library)
        asked = re.sub(r"(\.so\.\d+)\..*", r"\1", library.name)
        if asked != f"lib{name}.so":
            (folder / asked).symlink_to(library)
    return found


def _headers() -> Path:
    given = [os.environ.get("TENSORRT_INCLUDE"), *os.environ.get("CPATH", "").split(os.pathsep)]
    for folder in map(Path, filter(None, [*given, *HEADERS])):
        if (folder / "NvInfer.h").is_file():
            return folder.resolve()
    return pytest.skip(
        "needs TensorRT's headers: install libnvinfer-headers-plugin-dev and libnvonnxparsers-dev from NVIDIA's "
        "repository, or set TENSORRT_INCLUDE to a folder with NvInfer.h"
    )


def _toolkit() -> tuple[Path, Path]:
    """Return the folder of CUDA's toolkit, and its libcudart."""
    beside = Path(nvcc).resolve().parents[1] if (nvcc := shutil.which("nvcc")) else None
    packages = [Path(folder) / "nvidia" for folder in sys.path]
    pip = [place for each in packages for place in (*each.glob("cu[0-9]*"), each / "cuda_runtime")]
    usual = [Path(place) for place in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if place]
    for place in filter(None, [beside, *usual, *pip]):
        found = [library for name in CUDA for library in sorted((place / name).glob("libcudart.so*"))]
        if found and (place / "include/crt/host_defines.h").is_file():
            return place, found[0].resolve()
    return pytest.skip("needs CUDA's headers and libcudart: install its toolkit, or set CUDA_HOME to its folder")


def _loaded_libraries() -> dict[str, Path]:
    """Return the libraries that Python's TensorRT has loaded: others beside them may be of another version."""
    importlib.import_module("tensorrt")
    mapped = {Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    found = {name: each for name in LIBRARIES for each in mapped if each.name.startswith(f"lib{name}.so")}
    if missing := [name for name in LIBRARIES if name not in found]:
        pytest.skip(f"Python's TensorRT has not loaded lib{missing[0]}.so, which a program would be linked with")
    return found


def compile_plugin(compilers: Compilers, library: Path, capability: str, *options: str) -> Path:
    """Compile the plugin for QuickGelu into a library."""
    own = compilers.toolkit / "bin/nvcc"
    nvcc = own if own.is_file() else shutil.which("nvcc")
    if not nvcc:
        pytest.skip("needs nvcc: install NVIDIA's CUDA toolkit, and put its folder bin on the PATH")
    flags = ["-shared", "-std=c++17", f"-arch=sm_{capability.replace('.', '')}", "-Xcompiler", "-fPIC,-Wall"]
    folders = ["-isystem", compilers.headers, "-L", compilers.libraries]
    require(nvcc, *flags, *options, *folders, "-o", library, PLUGIN, "-lnvinfer", env=compilers.environment)
    return library


def compile_example(compilers: Compilers, bundle: Path, folder: Path) -> Path:
    """Compile the C++ example of a bundle as its CMakeLists.txt says, or by g++ where there is no whole CMake."""
    source, built = bundle / "cpp", folder / "build"
    for header in re.findall(r"#include <(Nv\w+\.h)>", (source / "main.cpp").read_text()):
        if not (compilers.headers / header).is_file():
            pytest.skip(f"needs {header}: {compilers.headers} has NvInfer.h, but not that one")
    if shutil.which("cmake") and (compilers.toolkit / "bin/nvcc").is_file() and _has_whole_toolkit(compilers):
        (tensorrt := folder / "tensorrt").mkdir()
        (tensorrt / "include").symlink_to(compilers.headers)
        (tensorrt / "lib").symlink_to(compilers.libraries)
        options = [f"-DTENSORRT={tensorrt}", f"-DCUDAToolkit_ROOT={compilers.toolkit}"]
        require("cmake", "-S", source, "-B", built, *options, env=compilers.environment)
        require("cmake", "--build", built, env=compilers.environment)
        return built / "classify"
    built.mkdir()
    folders = ["-isystem", compilers.headers, "-isystem", compilers.toolkit / "include", "-L", compilers.libraries]
    linked = [f"-l{name}" for name in (*LIBRARIES, "cudart")]
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", *folders]
    require("g++", *flags, "-o", built / "classify", source / "main.cpp", *linked, env=compilers.environment)
    return built / "classify"


def _has_whole_toolkit(compilers: Compilers) -> bool:
    """Tell whether CMake finds this toolkit. Those of pip have libraries under their full names alone."""
    return any((compilers.toolkit / name / "libcudart.so").exists() for name in CUDA)


def require(*command: object, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed, and return what it prints."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout

"""A machine with an NVIDIA GPU and TensorRT, simulated: what makes CUDA memory, streams and engines easy to get wrong.

`environment` makes any `python3 -m stages X` process see it: TensorRT's Python classes behave as described by NVIDIA's
real bindings (bindings.py, surface.py, tensorrt.py), device memory is host memory (cudart.py), NVML shows one GPU
(nvml.py), and PyTorch takes its CPU for a GPU (torch_cuda.py). Nothing of it says how fast or how exact a GPU is.

`failing` lists what can be provoked with SIMULATED_FAILURE; SIMULATED_CAPABILITY makes it another GPU than an Ada.
"""

import importlib
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

VERSIONS = ("10.3", "10.6", "10.16", "11.4")
MODULES = {
    "tensorrt": "tensorrt",
    "torch_tensorrt": "torch_tensorrt",
    "cuda.bindings.runtime": "cudart",
    "pynvml": "nvml",
}
SITE = Path(__file__).parent / "site"


def environment(version: str, failure: str = "", **more: str) -> dict[str, str]:
    """Return the environment of a process that runs on the simulated machine."""
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "SIMULATED_TENSORRT": version, "SIMULATED_FAILURE": failure} | more


def failing(what: str) -> bool:
    """Tell whether SIMULATED_FAILURE, a list with commas, asks for this failure.

    TensorRT: build_none, few_kernels (beside the weights), slow_build, no_lean_runtime, tiling_refused, cache_refused,
    out_of_memory_build, deserialize_none, out_of_memory_run, profile_refused, wrong_shape, unwritten_output,
    execute_false, beyond_tuned (as 10.6 in bf16 and fp8), wrong_beyond_tuned (as a detector in int8), wrong_at_largest,
    not_capturable, not_refitted, bias_lost, budget_refused, wrong_sums, wrong_fusions (which a barrier prevents),
    slow_untuned (not at optimization level 4, nor without auxiliary streams), wrong_tuned (in the latter case).
    Torch-TensorRT: other_torch, not_converted.
    CUDA: no_driver, no_device, old_driver, or the name of any function. NVML: no_nvml, hidden_processes, throttled.
    """
    return what in os.environ.get("SIMULATED_FAILURE", "").split(",")


def install() -> None:
    """Let all imports from now on find the simulation in place of the real modules."""
    sys.meta_path.insert(0, _Finder())
    for name in MODULES.keys() & sys.modules.keys():
        _forget(name)
    if "torch" in sys.modules:
        importlib.import_module(f"{__name__}.torch_cuda").install()


def real_module(name: str) -> ModuleType:
    """Import a real module for the simulation itself, so that no other code finds it."""
    simulating = [finder for finder in sys.meta_path if isinstance(finder, _Finder)]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in simulating]
    module = importlib.import_module(name)
    sys.meta_path[:0] = simulating
    if simulating:
        _forget(name)
    return module


def _forget(name: str) -> None:
    del sys.modules[name]
    package, _, attribute = name.rpartition(".")
    if package:
        delattr(sys.modules[package], attribute)


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            return _patched_torch(path)
        return ModuleSpec(name, self) if name in MODULES else None

    def create_module(self, spec):
        return importlib.import_module(f"{__name__}.{MODULES[spec.name]}")

    def exec_module(self, module):
        """Do nothing: `create_module` has executed it."""


def _patched_torch(path) -> ModuleSpec | None:
    spec = PathFinder.find_spec("torch", path)
    if spec is None:
        return None
    execute = spec.loader.exec_module

    def execute_and_patch(module):
        execute(module)
        importlib.import_module(f"{__name__}.torch_cuda").install()

    spec.loader.exec_module = execute_and_patch
    return spec

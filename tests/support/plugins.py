"""Plugin libraries for the simulated TensorRT, in which a plugin is the name of the operator that it takes over."""

import shutil
import subprocess

import numpy as np
import pytest

from enginewright.core.params.build import InferenceParams
from enginewright.engine.engine import open_engine

SOURCES = {
    # Whoever opens the library has its plugins, as with REGISTER_TENSORRT_PLUGIN.
    "registers itself": """
#include <stdlib.h>
__attribute__((constructor)) static void open(void) { setenv("SIMULATED_PLUGINS", "OPERATOR", 1); }
""",
    # TensorRT asks for the plugins, as NVIDIA describes plugin shared libraries.
    "hands out": """
static const char *const names[] = {"OPERATOR"};
void setLoggerFinder(void *finder) {}
const char *const *getCreators(int *count) { return *count = 1, names; }
""",
    "hands out nothing": """
void setLoggerFinder(void *finder) {}
void *const *getCreators(int *count) { return *count = 0, (void *)0; }
""",
    "registers nothing": "",
    "needs another library": "int missing_function(void); int call(void) { return missing_function(); }",
}


def plugin_library(path, kind, operator="Relu"):
    """Compile a library of one of these kinds."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-Wl,-z,now", "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=SOURCES[kind].replace("OPERATOR", operator), text=True, check=True)
    return path


def run_once(folder, gpu, images):
    """Run an engine. It stands here so that a new process need not import what only tests do."""
    with open_engine(folder, gpu, InferenceParams(threads=0, cuda_graph=False)) as engine:
        assert np.isfinite(engine.run({"input": images})["logits"]).all()

"""What importing costs and needs, each in a fresh interpreter."""

import json
import subprocess
import sys

from support.paths import ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("enginery", "stages")
    for path in (ROOT / folder).rglob("*.py")
)
LIGHT_STAGES = ("machine", "samples", "calibrate", "convert", "build", "validate", "trace", "report", "gate")


def imported(modules, blocked=()):
    """All that is loaded after importing the modules, without the blocked ones."""
    program = f"""
import importlib, json, sys
sys.modules.update(dict.fromkeys({list(blocked)!r}))
for module in {list(modules)!r}:
    importlib.import_module(module)
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""
    child = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return set(json.loads(child.stdout.splitlines()[-1]))


def test_every_module_imports_without_tensorrt():
    assert imported(MODULES, blocked=("tensorrt", "tensorrt_rtx")) >= set(MODULES)


def test_stages_that_need_no_torch_do_not_load_it():
    """It takes three seconds, and a machine that only builds engines need not have it."""
    assert "torch" not in imported([f"stages.{name}" for name in LIGHT_STAGES])


def test_openvino_is_loaded_only_when_it_is_used():
    assert "openvino" not in imported(["enginery.engine.engine", "enginery.engine.runtimes.openvino"])


def test_reading_parameters_and_records_is_cheap():
    loaded = imported(["enginery.core.params", "enginery.core.record"])
    assert not loaded & {"numpy", "onnx", "torch", "pandas"}

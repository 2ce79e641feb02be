import pytest

from enginery import machine
from enginery.core.errors import EngineryError
from enginery.machine import Hardware, describe_machine, find_cpu
from enginery.runtimes import load_runtime, onnxruntime

GPU = Hardware("NVIDIA H200", "9.0", "580.159")


@pytest.fixture
def with_gpu(monkeypatch):
    """A machine whose GPU ONNX Runtime can use; nothing is executed on it."""
    monkeypatch.setattr(machine, "find_gpu", lambda: GPU)
    monkeypatch.setattr(onnxruntime, "device", lambda: "cuda")


def test_auto_is_openvino_without_a_gpu(monkeypatch):
    monkeypatch.setattr(machine, "find_gpu", lambda: None)
    here = describe_machine("auto")
    assert (here.runtime, here.device, here.device_name) == ("openvino", "cpu", find_cpu().name)


def test_auto_is_onnxruntime_on_a_gpu(with_gpu):
    here = describe_machine("auto")
    assert (here.runtime, here.device) == ("onnxruntime", "cuda")
    assert (here.device_name, here.capability, here.driver) == GPU


def test_auto_stays_on_the_cpu_where_no_runtime_can_use_the_gpu(monkeypatch):
    monkeypatch.setattr(machine, "find_gpu", lambda: GPU)
    monkeypatch.setattr(onnxruntime, "device", lambda: "cpu")
    assert describe_machine("auto").runtime == "openvino"


def test_a_runtime_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("openvino", "onnxruntime"):
        assert f"pip install {name}" in load_runtime(name).missing()
        with pytest.raises(EngineryError, match=f"runtime: {name} is asked for in params.yaml, but .*pip install"):
            describe_machine(name)

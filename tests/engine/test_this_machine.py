import os
import re
from types import SimpleNamespace

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.engine import runtimes
from enginewright.engine.gpu import Hardware
from enginewright.engine.runtimes import describe_machine, find_cpu, load_runtime, onnxruntime
from enginewright.engine.runtimes.tensorrt import TensorRT
from enginewright.engine.runtimes.tensorrt_library import Library

GPU = Hardware("NVIDIA H200", "9.0", "580.159", "13.0")


@pytest.fixture
def with_gpu(monkeypatch):
    """A machine with a GPU that ONNX Runtime can use. Nothing is executed on it."""
    monkeypatch.setattr(runtimes, "find_gpu", lambda: GPU)
    monkeypatch.setattr(onnxruntime, "device", lambda: "cuda")


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(runtimes, "find_gpu", lambda: None)


def test_auto_is_openvino_without_a_gpu(without_gpu):
    here = describe_machine("auto")
    assert (here.runtime, here.device, here.device_name) == ("openvino", "cpu", find_cpu().device_name)


CLOCKS = "echo GPU MinFreq=918000000 MaxFreq={} CurrentFreq=918000000"


@pytest.mark.parametrize(
    ("mode", "clocks", "said"),
    [
        ("echo NV Power Mode: MODE_15W; echo 2", CLOCKS.format(1224000000), "power mode MODE_15W, clocks not fixed"),
        ("echo NV Power Mode: MAXN", CLOCKS.format(918000000), "power mode MAXN, clocks fixed"),
        ("echo NV Power Mode: MAXN", "echo 'Error: run it as root' >&2; exit 1", "power mode MAXN"),
        (None, None, ""),
    ],
)
def test_how_a_jetson_is_set_is_part_of_the_machine(mode, clocks, said, without_gpu, tmp_path, monkeypatch):
    for name, text in {"nvpmodel": mode, "jetson_clocks": clocks}.items():
        if text:
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    runtimes._power.cache_clear()
    here = describe_machine("auto")
    runtimes._power.cache_clear()
    assert here.power == said
    assert here.in_words().endswith(f"cores, {said}" if said else "cores")


def test_auto_is_onnxruntime_on_a_gpu(with_gpu):
    here = describe_machine("auto")
    assert (here.runtime, here.device) == ("onnxruntime", "cuda")
    assert (here.device_name, here.capability, here.driver, here.cuda) == GPU


def test_auto_stays_on_the_cpu_where_no_runtime_can_use_the_gpu(with_gpu, monkeypatch):
    monkeypatch.setattr(onnxruntime, "device", lambda: "cpu")
    assert describe_machine("auto").runtime == "openvino"


def installed(monkeypatch, runtime, version):
    """Pretend that TensorRT is installed."""
    monkeypatch.setattr(TensorRT, "missing", lambda self: None)
    monkeypatch.setattr(TensorRT, "version", lambda self: version)
    return runtime


def test_auto_prefers_tensorrt_on_a_gpu(with_gpu, monkeypatch):
    installed(monkeypatch, "tensorrt", "11.4.0.106")
    here = describe_machine("auto")
    assert (here.runtime, here.runtime_version, here.device) == ("tensorrt", "11.4.0.106", "cuda")
    assert (here.device_name, here.capability, here.driver, here.cuda) == GPU


def test_auto_says_why_it_does_not_take_tensorrt(with_gpu, monkeypatch, capfd):
    monkeypatch.setattr(TensorRT, "missing", lambda self: "TensorRT is not installed: pip install it")
    assert describe_machine("auto").runtime == "onnxruntime"
    assert capfd.readouterr().err == "runtime: auto does not take tensorrt: TensorRT is not installed: pip install it\n"


def test_tensorrt_for_rtx_needs_no_gpu_to_build(without_gpu, monkeypatch):
    here = describe_machine(installed(monkeypatch, "tensorrt_rtx", "1.7.1.116"))
    assert (here.runtime, here.device, here.device_name) == ("tensorrt_rtx", "cuda", "a machine without a GPU")
    assert (here.capability, here.driver, here.cuda) == ("", "", "")


def test_tensorrt_needs_a_gpu_and_names_the_runtime_that_needs_none(without_gpu, monkeypatch):
    with pytest.raises(EnginewrightError) as caught:
        describe_machine(installed(monkeypatch, "tensorrt", "11.4.0.106"))
    assert str(caught.value).startswith("runtime: tensorrt needs an NVIDIA GPU, but this machine shows no NVIDIA GPU")
    assert "runtime: tensorrt_rtx builds without one" in str(caught.value)


@pytest.fixture
def with_old_driver(monkeypatch):
    monkeypatch.setattr(
        "enginewright.engine.gpu._call", {"cudaDriverGetVersion": 12080, "cudaRuntimeGetVersion": 13020}.get
    )


OLD_DRIVER = "the NVIDIA driver goes up to CUDA 12.8, and CUDA 13 is needed"


def test_a_driver_that_is_too_old_is_refused_before_anything_is_built(with_old_driver, monkeypatch):
    with pytest.raises(EnginewrightError, match=f"runtime: tensorrt needs an NVIDIA GPU, but {OLD_DRIVER}"):
        describe_machine(installed(monkeypatch, "tensorrt", "11.4.0.106"))


def test_an_old_driver_does_not_matter_to_a_runtime_for_the_cpu(with_old_driver, capfd):
    assert describe_machine("openvino").runtime == "openvino"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("wanted", ["auto", "tensorrt_rtx"])
def test_a_runtime_that_goes_on_without_the_gpu_says_why(with_old_driver, monkeypatch, capfd, wanted):
    installed(monkeypatch, "tensorrt_rtx", "1.7.1.116")
    assert describe_machine(wanted).runtime == {"auto": "openvino"}.get(wanted, wanted)
    assert OLD_DRIVER in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("openvino", "OpenVINO is not installed: pip install openvino"),
        (
            "onnxruntime",
            "ONNX Runtime is not installed: pip install onnxruntime-gpu (or onnxruntime, for the CPU alone)",
        ),
        ("tensorrt", "TensorRT is not installed: pip install -e '.[tensorrt]'"),
        ("tensorrt_rtx", "TensorRT for RTX is not installed: pip install -e '.[tensorrt-rtx]'"),
    ],
)
def test_a_runtime_that_is_not_installed_says_how_to_install_it(monkeypatch, without_gpu, name, missing):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert load_runtime(name).missing() == missing
    with pytest.raises(
        EnginewrightError, match=f"runtime: {name} is asked for in params.yaml, but {re.escape(missing)}"
    ):
        describe_machine(name)


@pytest.mark.parametrize(
    ("name", "version", "oldest"),
    [("tensorrt", "10.2.0", "10.3"), ("tensorrt", "8.6.1", "10.3"), ("tensorrt_rtx", "1.1.1.26", "1.2")],
)
def test_tensorrt_that_is_too_old_names_the_oldest_it_is_written_for(monkeypatch, name, version, oldest):
    library = SimpleNamespace(__version__=version)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: library)
    monkeypatch.setattr(Library, "trt", library)
    assert (
        f" {version} is too old, Enginewright is written for {oldest} and newer: pip install"
        in load_runtime(name).missing()
    )
    library.__version__ = f"{oldest}.0.1"
    assert load_runtime(name).missing() is None

from types import SimpleNamespace

import pynvml
import pytest

from enginery.core.errors import EngineryError
from enginery.engine import this_machine as machine
from enginery.engine.runtimes import load_runtime, onnxruntime
from enginery.engine.runtimes.tensorrt import TensorRT
from enginery.engine.this_machine import Hardware, describe_machine, find_cpu
from enginery.quantization.dialect import dialect_of

GPU = Hardware("NVIDIA H200", "9.0", "580.159", "13.0")


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
    assert (here.device_name, here.capability, here.driver, here.cuda) == GPU


def test_auto_stays_on_the_cpu_where_no_runtime_can_use_the_gpu(monkeypatch):
    monkeypatch.setattr(machine, "find_gpu", lambda: GPU)
    monkeypatch.setattr(onnxruntime, "device", lambda: "cpu")
    assert describe_machine("auto").runtime == "openvino"


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(machine, "find_gpu", lambda: None)


def installed(monkeypatch, runtime, version):
    """As if TensorRT were installed, which needs no GPU for that."""
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


def test_tensorrt_needs_a_gpu_and_points_to_what_needs_none(without_gpu, monkeypatch):
    with pytest.raises(EngineryError) as caught:
        describe_machine(installed(monkeypatch, "tensorrt", "11.4.0.106"))
    assert str(caught.value).startswith("runtime: tensorrt needs an NVIDIA GPU, but this machine shows no NVIDIA GPU")
    assert "runtime: tensorrt_rtx builds without one" in str(caught.value)


@pytest.fixture
def with_old_driver(monkeypatch):
    monkeypatch.setattr("pynvml.nvmlInit", lambda: None)
    monkeypatch.setattr(
        "enginery.engine.gpu.cuda._call", {"cudaDriverGetVersion": 12080, "cudaRuntimeGetVersion": 13020}.get
    )


OLD_DRIVER = "the NVIDIA driver goes up to CUDA 12.8, and CUDA 13 is needed"


def test_a_driver_that_is_too_old_is_said_before_anything_is_built(with_old_driver, monkeypatch):
    with pytest.raises(EngineryError, match=f"runtime: tensorrt needs an NVIDIA GPU, but {OLD_DRIVER}"):
        describe_machine(installed(monkeypatch, "tensorrt", "11.4.0.106"))


def test_an_old_driver_does_not_disturb_what_needs_no_gpu(with_old_driver, capfd):
    assert describe_machine("openvino").runtime == "openvino"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("wanted", ["auto", "tensorrt_rtx"])
def test_what_goes_on_without_a_gpu_says_why_it_cannot_use_it(with_old_driver, monkeypatch, capfd, wanted):
    installed(monkeypatch, "tensorrt_rtx", "1.7.1.116")
    assert describe_machine(wanted).runtime == {"auto": "openvino"}.get(wanted, wanted)
    assert OLD_DRIVER in capfd.readouterr().err


def test_a_management_library_that_does_not_answer_is_not_taken_for_no_gpu(monkeypatch, capfd):
    """After an update of the driver, until the next reboot."""

    def mismatch():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setattr("pynvml.nvmlInit", mismatch)
    assert describe_machine("auto").runtime == "openvino"
    assert (
        "runtime: auto goes on without the GPU: NVIDIA's management library does not answer" in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("runtime", "rest"), [("tensorrt", "fp16"), ("tensorrt_rtx", "fp16"), ("onnxruntime", "fp32"), ("openvino", "fp32")]
)
def test_what_is_not_quantized_is_float16_for_tensorrt_alone(without_gpu, runtime, rest):
    here = describe_machine("openvino").model_copy(update={"runtime": runtime})
    assert dialect_of(here).rest == rest


def test_a_runtime_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(machine, "find_gpu", lambda: None)
    for name in ("openvino", "onnxruntime"):
        assert f"pip install {name}" in load_runtime(name).missing()
        with pytest.raises(EngineryError, match=f"runtime: {name} is asked for in params.yaml, but .*pip install"):
            describe_machine(name)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("tensorrt", "TensorRT is not installed: pip install -e '.[tensorrt]'"),
        ("tensorrt_rtx", "TensorRT for RTX is not installed: pip install -e '.[tensorrt-rtx]'"),
    ],
)
def test_tensorrt_that_is_not_installed_names_its_extra(monkeypatch, name, wanted):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert load_runtime(name).missing() == wanted


@pytest.mark.parametrize(
    ("name", "version", "oldest"),
    [("tensorrt", "10.8.0.43", "10.9"), ("tensorrt", "8.6.1", "10.9"), ("tensorrt_rtx", "1.1.1.26", "1.2")],
)
def test_tensorrt_that_is_too_old_names_the_oldest_it_is_written_for(monkeypatch, name, version, oldest):
    library = SimpleNamespace(__version__=version)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: library)
    monkeypatch.setattr(TensorRT, "_trt", lambda self: library)
    assert (
        f" {version} is too old, Enginery is written for {oldest} and newer: pip install"
        in load_runtime(name).missing()
    )
    library.__version__ = f"{oldest}.0.1"
    assert load_runtime(name).missing() is None

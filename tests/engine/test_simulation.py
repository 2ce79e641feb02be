"""The simulated GPU agrees with the real bindings, and notices the mistakes that fail on a real GPU."""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import simulated
from simulated import bindings, cudart, nvml, surface
from support.warm_python import warm_python

ROOT = bindings.FOLDER.parents[1]
FOR_A_REAL_GPU = sorted(map(str, ROOT.glob("tests/verify_gpu/verify_*.py")))
GPU_TO_HOST = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
HOST_TO_GPU = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
# The others are simulated as one of these two, in all that the longer tests look at.
OLDEST_AND_NEWEST = (simulated.VERSIONS[0], simulated.VERSIONS[-1])
OF_ANY_TENSORRT = ("-k", "not (torch_tensorrt or the_pace_sees)")  # what TensorRT has no part in is tested once
CAPTURE = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal


def run(version, *arguments, **environment):
    """Run Python on the simulated machine, with folders of its own for the cache and for temporary files.

    The timings of a simulated GPU are useless to others, and two pytests that clean up one temporary folder may fail.
    """
    with tempfile.TemporaryDirectory() as own:
        environment = simulated.environment(version, XDG_CACHE_HOME=own, TMPDIR=own, **environment)
        python = warm_python() / "python3" if arguments[0] == "-m" else sys.executable
        return subprocess.run([python, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)


def output(done):
    """Return the whole output. Errors that pytest finds after the checks are on stderr."""
    return f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def call(name, *arguments):
    status, *results = getattr(cudart, name)(*arguments)
    assert not int(status), status
    return results[0] if results else None


def status_of(name, *arguments):
    return getattr(cudart, name)(*arguments)[0].name


@pytest.fixture
def stream():
    created = call("cudaStreamCreateWithFlags", cudart.cudaStreamNonBlocking)
    yield created
    call("cudaStreamDestroy", created)
    assert not any(cudart.allocated().values())


@pytest.fixture
def memory():
    """4 bytes in pinned memory and on the device."""
    host, device = call("cudaHostAlloc", 4, 0), call("cudaMalloc", 4)
    ctypes.memmove(host, b"abcd", 4)
    yield host, device
    call("cudaFreeHost", host)
    call("cudaFree", device)


@pytest.mark.parametrize("version", simulated.VERSIONS)
def test_tensorrt_is_simulated_as_its_bindings_describe_it(version):
    checks = run(version, "-m", "pytest", "-p", "no:cacheprovider", "tests/simulated/checks.py")
    assert checks.returncode == 0, output(checks)


@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
def test_each_failure_of_tensorrt_is_a_sentence(version):
    chosen = () if version == simulated.VERSIONS[-1] else OF_ANY_TENSORRT
    provoked = run(version, "-m", "pytest", "-p", "no:cacheprovider", *chosen, "tests/simulated/provoked.py")
    assert provoked.returncode == 0, output(provoked)


@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
def test_a_build_is_tuned(version):
    tuned = run(version, "-m", "pytest", "-p", "no:cacheprovider", "tests/simulated/tuned.py")
    assert tuned.returncode == 0, output(tuned)


def test_a_model_that_is_quantized_already_is_built():
    given = run(
        "10.6", "-m", "pytest", "-p", "no:cacheprovider", "tests/simulated/given.py", SIMULATED_CAPABILITY="9.0"
    )
    assert given.returncode == 0, output(given)


@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
def test_the_tests_for_a_real_gpu_pass_on_the_simulated_one(version):
    """Two tests are left out: the simulation replays a graph by doing its work again, so launches take no less time;
    and Polygraphy looks for CUDA's own library."""
    folder = "tests/verify_gpu/verify_machine.py"
    timed = f"{folder}::test_replaying_a_graph_is_no_slower_than_launching_its_kernels"
    outside = f"{folder}::test_polygraphy_finds_that_an_engine_computes_what_its_graph_means"
    chosen = () if version == simulated.VERSIONS[-1] else OF_ANY_TENSORRT
    options = ("-x", "-p", "no:cacheprovider", "--deselect", timed, "--deselect", outside, *chosen)
    verified = run(version, "-m", "pytest", *options, *FOR_A_REAL_GPU)
    assert verified.returncode == 0, output(verified)
    # The tests named above still exist, one of them for each precision.
    assert f"{7 if chosen else 5} deselected" in verified.stdout


def verify(test, **environment):
    """Run one of the tests for a real GPU, and return how it ends."""
    options = ("-q", "-rs", "-p", "no:cacheprovider", "-k", test)
    return run("11.4", "-m", "pytest", *options, *FOR_A_REAL_GPU, **environment)


def test_a_timing_cache_that_does_not_work_is_seen():
    done = verify("second_build_finds_the_timings", failure="cache_refused")
    assert done.returncode == 1, output(done)
    assert "Assertion !errorOnMiss failed" in done.stdout


def test_on_a_gpu_without_bf16_the_other_precisions_are_verified():
    done = verify("(computes_what_its_graph_means and not polygraphy) or what_was_executed", SIMULATED_CAPABILITY="7.5")
    assert done.returncode == 0, output(done)
    assert "a GPU of compute capability 7.5 does not have bf16" in done.stdout
    marks = done.stdout.partition(" ")[0]
    assert (marks.count("."), marks.count("s")) == (12, 4)


def test_another_version_of_trtexec_is_no_failure(tmp_path):
    (tmp_path / "trtexec").write_text("#!/bin/sh\necho '&&&& RUNNING TensorRT.trtexec [TensorRT v101601] [b11]'\n")
    (tmp_path / "trtexec").chmod(0o755)
    done = verify("nvidias_own_command", PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    assert done.returncode == 0, output(done)
    assert "this trtexec is of TensorRT v101601" in done.stdout


def test_no_two_simulated_machines_share_temporary_files():
    folders = [run("11.4", "-c", "import tempfile; print(tempfile.gettempdir())").stdout for _ in range(2)]
    assert len({*folders, f"{tempfile.gettempdir()}\n"}) == 3


@pytest.mark.parametrize("version", simulated.VERSIONS)
def test_a_method_that_the_real_class_loses_cannot_be_simulated(version):
    removal = (
        "from simulated.bindings import load_bindings\n"
        f"del load_bindings('{version}').ICudaEngine.get_tensor_dtype\n"
        "import tensorrt"
    )
    done = run(version, "-c", removal)
    assert "the real ICudaEngine has no such get_tensor_dtype" in done.stderr


def test_missing_bindings_are_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(bindings, "FOLDER", tmp_path)
    with pytest.raises(RuntimeError, match=r"has no bindings of TensorRT 11\.4: `make test` installs them"):
        bindings.load_bindings("11.4")


def test_any_process_sees_the_simulated_machine():
    code = (
        "import importlib.util, sys\n"
        "assert 'numpy' not in sys.modules\n"
        "assert importlib.util.find_spec('tensorrt')\n"
        "import pynvml, tensorrt\n"
        "from cuda.bindings import runtime\n"
        "print(tensorrt.Builder.__module__, runtime.__name__, pynvml.__name__)"
    )
    done = run("11.4", "-c", code)
    assert done.stdout.split() == ["simulated.tensorrt", "simulated.cudart", "simulated.nvml"], done.stderr


def test_this_process_does_not():
    assert not any(isinstance(finder, simulated._Finder) for finder in sys.meta_path)


def test_functions_that_nvidia_does_not_have_cannot_be_simulated():
    def invented():
        """There is no such thing."""

    def cudaMalloc(size, flags):  # noqa: N802
        """The real one takes the size alone."""

    with pytest.raises(AttributeError):
        surface.same_signature(cudart.real)(invented)
    with pytest.raises(TypeError, match=r"the real cudaMalloc takes \(size\)"):
        surface.same_signature(cudart.real)(cudaMalloc)


def test_a_function_that_is_not_simulated_is_an_error():
    for module, name in ((cudart, "cudaMemcpy2D"), (nvml, "nvmlDeviceGetUUID")):
        with pytest.raises(AttributeError, match=f"the simulation lacks {name}"):
            getattr(module, name)


def test_copies_happen_when_the_stream_is_waited_for(stream, memory):
    host, device = memory
    call("cudaMemcpyAsync", device, host, 4, HOST_TO_GPU, stream)
    call("cudaMemsetAsync", device, ord("x"), 2, stream)
    call("cudaMemcpyAsync", host, device, 4, GPU_TO_HOST, stream)
    assert ctypes.string_at(host, 4) == b"abcd"
    call("cudaStreamSynchronize", stream)
    assert ctypes.string_at(host, 4) == b"xxcd"


def test_copies_read_what_is_there_when_they_happen(stream, memory):
    host, device = memory
    call("cudaMemcpyAsync", device, host, 4, HOST_TO_GPU, stream)
    ctypes.memmove(host, b"late", 4)
    call("cudaStreamSynchronize", stream)
    assert ctypes.string_at(device, 4) == b"late"


def test_work_is_done_in_order_when_two_threads_wait_for_it(stream):
    """One thread does all that is waited for. The other's later work must not overtake it."""
    done, began, may_end = [], Event(), Event()
    cudart.enqueue(stream, lambda: (began.set(), may_end.wait(10), done.append("first")))
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(call, "cudaStreamSynchronize", stream)]
        assert began.wait(10)
        cudart.enqueue(stream, lambda: done.append("second"))
        waits.append(threads.submit(call, "cudaStreamSynchronize", stream))
        time.sleep(0.01)  # so that the second wait would have overtaken
        may_end.set()
        assert [wait.result() for wait in waits] == [None, None]
    assert done == ["first", "second"]


def test_fresh_memory_holds_garbage(stream):
    device = call("cudaMalloc", 4)
    assert ctypes.string_at(device, 4) != bytes(4)
    call("cudaFree", device)


def test_a_graph_replays_what_was_captured(stream, memory):
    host, device = memory
    call("cudaStreamBeginCapture", stream, CAPTURE)
    call("cudaMemcpyAsync", device, host, 4, HOST_TO_GPU, stream)
    captured = call("cudaStreamEndCapture", stream)
    graph = call("cudaGraphInstantiate", captured, 0)
    call("cudaGraphDestroy", captured)
    call("cudaStreamSynchronize", stream)
    assert ctypes.string_at(device, 4) != b"abcd"
    for content in (b"1111", b"2222"):
        ctypes.memmove(host, content, 4)
        call("cudaGraphLaunch", graph, stream)
        call("cudaStreamSynchronize", stream)
        assert ctypes.string_at(device, 4) == content
    call("cudaGraphExecDestroy", graph)


@pytest.mark.parametrize("forbidden", [("cudaMalloc", 4), ("cudaHostAlloc", 4, 0), ("cudaStreamSynchronize", None)])
def test_a_capture_does_not_survive_what_it_forbids(stream, forbidden):
    name, *arguments = forbidden
    call("cudaStreamBeginCapture", stream, CAPTURE)
    assert status_of(name, *[stream if argument is None else argument for argument in arguments]) == (
        "cudaErrorStreamCaptureUnsupported"
    )
    assert status_of("cudaStreamEndCapture", stream) == "cudaErrorStreamCaptureInvalidated"
    call("cudaStreamSynchronize", stream)


def test_wrong_addresses_are_refused(stream, memory):
    host, device = memory
    wrong = [
        (device, host, 5, HOST_TO_GPU),  # beyond both
        (device, host, 4, GPU_TO_HOST),  # the wrong way
        (device + 2, host, 4, HOST_TO_GPU),
        (device, ctypes.addressof(ctypes.create_string_buffer(4)), 4, HOST_TO_GPU),  # not pinned
    ]
    for arguments in wrong:
        assert status_of("cudaMemcpyAsync", *arguments, stream) == "cudaErrorInvalidValue"
    assert status_of("cudaFree", host) == "cudaErrorInvalidValue"
    assert status_of("cudaFreeHost", device) == "cudaErrorInvalidValue"


def test_memory_is_freed_once_and_not_used_again(stream):
    device = call("cudaMalloc", 4)
    call("cudaFree", device)
    assert status_of("cudaFree", device) == "cudaErrorInvalidValue"
    assert status_of("cudaMemsetAsync", device, 0, 4, stream) == "cudaErrorInvalidValue"


def test_a_graph_that_outlives_its_memory_is_an_illegal_access(stream):
    device = call("cudaMalloc", 4)
    call("cudaStreamBeginCapture", stream, CAPTURE)
    call("cudaMemsetAsync", device, 0, 4, stream)
    captured = call("cudaStreamEndCapture", stream)
    graph = call("cudaGraphInstantiate", captured, 0)
    call("cudaFree", device)
    call("cudaGraphLaunch", graph, stream)
    assert status_of("cudaStreamSynchronize", stream) == "cudaErrorIllegalAddress"
    call("cudaGraphDestroy", captured)
    call("cudaGraphExecDestroy", graph)


def test_a_destroyed_stream_is_refused():
    stream = call("cudaStreamCreateWithFlags", cudart.cudaStreamNonBlocking)
    call("cudaStreamDestroy", stream)
    assert status_of("cudaStreamSynchronize", stream) == "cudaErrorInvalidResourceHandle"


def test_device_memory_is_limited(monkeypatch):
    monkeypatch.setenv("SIMULATED_MEMORY", "1000")
    held = call("cudaMalloc", 600)
    assert cudart.cudaMemGetInfo()[1:] == (400, 1000)
    assert status_of("cudaMalloc", 401) == "cudaErrorMemoryAllocation"
    call("cudaFree", held)
    call("cudaFree", call("cudaMalloc", 1000))


def test_memory_that_was_not_freed_is_counted(memory):
    assert cudart.allocated()["device"] == cudart.allocated()["host"] == 1


def test_events_measure_the_time_of_work_that_was_waited_for(stream, memory):
    events = [call("cudaEventCreate") for _ in range(2)]
    assert status_of("cudaEventElapsedTime", *events) == "cudaErrorInvalidResourceHandle"
    for event in events:
        call("cudaEventRecord", event, stream)
    assert status_of("cudaEventElapsedTime", *events) == "cudaErrorNotReady"
    call("cudaStreamSynchronize", stream)
    assert 0 < call("cudaEventElapsedTime", *events) < 1000
    for event in events:
        call("cudaEventDestroy", event)


def test_any_function_can_be_made_to_fail(monkeypatch):
    monkeypatch.setenv("SIMULATED_FAILURE", "cudaMemGetInfo")
    assert cudart.cudaMemGetInfo() == (cudart.cudaError_t.cudaErrorUnknown, None, None)
    monkeypatch.setenv("SIMULATED_FAILURE", "no_device")
    assert status_of("cudaGetDeviceCount") == "cudaErrorNoDevice"


def test_nvml_shows_one_gpu_and_what_this_process_takes_of_it(memory, monkeypatch):
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByPciBusId(ctypes.create_string_buffer(call("cudaDeviceGetPCIBusId", 20, 0)).value)
    assert (nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetCudaComputeCapability(gpu)) == ("Simulated GPU", (8, 9))
    (process,) = nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
    assert (process.pid, process.usedGpuMemory) == (os.getpid(), nvml.CONTEXT_BYTES + 4)
    with pytest.raises(nvml.NVMLError):
        nvml.nvmlDeviceGetName("another")
    monkeypatch.setenv("SIMULATED_FAILURE", "no_device")
    with pytest.raises(nvml.NVMLError):
        nvml.nvmlInit()
    nvml.nvmlShutdown()
    with pytest.raises(nvml.NVMLError):
        nvml.nvmlDeviceGetCount()

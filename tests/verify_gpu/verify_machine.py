"""Times, memory and tools on a GPU."""

import importlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.builds import build_apart, building_here
from support.gpu import LIMITS, PLAIN, REPLAYED, meant, relative_error
from support.plugins import plugin_library
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES
from enginewright.core.params.build import TORCH_TENSORRT, BenchmarkParams, Profile, Range
from enginewright.engine import gpu
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.gpu import GpuSampler, process_megabytes
from enginewright.engine.machine import target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes.gpu_session import DeviceSession
from enginewright.engine.runtimes.tensorrt import TensorRT
from enginewright.engine.tools import write_comparison
from enginewright.graph.interface import Blueprint, Interface, TensorSpec
from enginewright.measure.benchmark import isolated, measure_engine
from enginewright.measure.contenders import _compiled, pace_meter, pytorch_contender
from enginewright.measure.records import SAME_PACE, Trace
from enginewright.pipeline.speed import require_possible


def test_an_element_that_is_not_written_is_seen(build):
    class Idle:
        replays = False

        def announce(self, shapes, values):
            return {"logits": (shapes["input"][0], 4)}

        def place(self, addresses):
            pass

        def let_grow(self, outputs):
            pass

        def enqueue(self, stream):
            pass

        def close(self):
            pass

    interface = Interface(
        inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 3)),),
        outputs=(TensorSpec(name="logits", dtype="float32", shape=("batch", 4)),),
    )
    session = DeviceSession(gpu.Stream(), Idle(), Blueprint(interface, build), replay=False)
    try:
        assert np.isnan(session.run({"input": np.ones((5, 3), np.float32)})["logits"]).all()
    finally:
        session.close()


def test_the_device_clock_lies_within_the_host_clock(engines, machine, images):
    with open_engine(engines / "fp32", machine, PLAIN) as engine:
        call = engine.bind({"input": images})
        for _ in range(20):
            call()
        for _ in range(20):
            started = time.perf_counter()
            compute = call()
            assert 0 < compute < time.perf_counter() - started


def test_replaying_a_graph_is_no_slower_than_launching_its_kernels(engines, machine, images):
    """They take turns, and the fastest call of each counts: other work on a shared machine only adds time."""
    taken = {"plain": [], "replayed": []}
    with (
        open_engine(engines / "fp32", machine, PLAIN) as plain,
        open_engine(engines / "fp32", machine, REPLAYED) as replayed,
    ):
        calls = {"plain": plain.bind({"input": images}), "replayed": replayed.bind({"input": images})}
        for _ in range(300):
            for name, call in calls.items():
                taken[name].append(call())
    fastest = {name: min(seconds) for name, seconds in taken.items()}
    print({name: f"{seconds * 1e6:.1f} us" for name, seconds in fastest.items()})
    assert fastest["replayed"] < 1.1 * fastest["plain"]


def test_an_engine_is_timed_in_a_process_of_its_own(engines, machine, samples, tmp_path):
    """It is timed by the device's clock at each batch size. The time in this process is printed for comparison."""
    machine.write(tmp_path / "machine.json")
    params = BenchmarkParams(batches=(2, 8), seconds=0.2, baselines=("eager",), requests=(1,), confidence=0.95, seed=0)
    places = engines / "fp32", tmp_path / "machine.json", samples.folder
    by_itself = isolated(measure_engine, samples.cycled(8), *places, REPLAYED, params)
    with open_engine(engines / "fp32", machine, REPLAYED) as engine:
        call = engine.bind(samples.cycled(8))
        here = 1000 * statistics.median(call() for _ in range(300))
    print(by_itself.memory, by_itself.compute, f"{here:.4f} ms here at batch 8")
    assert by_itself.compute.keys() == {2, 8}
    assert min(by_itself.compute.values()) > 0
    assert by_itself.memory.device is None or by_itself.memory.device > 0


def test_layers_take_together_about_what_the_whole_takes(graphs, machine, exact, manifest, samples, tmp_path):
    """The batch is large enough to keep a real GPU busy, so that the times of launches do not count."""
    batch, engine = 64 if "SIMULATED_TENSORRT" in os.environ else 2048, tmp_path / "engine"
    large = exact.model_copy(update={"profile": Profile(batch=Range(min=1, opt=batch, max=batch))})
    build_engine(DescribedGraph("fp32", graphs["fp32"], manifest), target_of(machine, large.tensorrt), large, engine)

    def milliseconds_of_compute():
        with open_engine(engine, machine, PLAIN) as opened:
            call = opened.bind(samples.cycled(batch))
            return min(call() for _ in range(30)) * 1000  # whatever else runs on the machine adds to a call

    before = milliseconds_of_compute()
    machine.write(tmp_path / "machine.json")
    arguments = {
        "precision": "fp32",
        "engine": engine,
        "validation": samples.folder,
        "machine": tmp_path / "machine.json",
        "report": tmp_path / "trace.json",
    }
    options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    for _ in range(3):  # whatever else runs on the machine adds to a trace, too
        # In a process of its own: CUDA must not have started before the stage changes its settings.
        subprocess.run([sys.executable, "-m", "stages", "trace", *options], check=True)
        trace = Trace.read(tmp_path / "trace.json")
        compute = min(before, milliseconds_of_compute())
        print(f"{trace.milliseconds:.3f} ms of layers, {compute:.3f} ms of compute")
        if trace.milliseconds / compute < 3:
            break
    assert 0.7 < trace.milliseconds / compute < 3
    assert {layer.name for layer in EngineRecord.read(engine / "engine.json").layers if layer.computes} <= {
        layer.name for layer in trace.layers if layer.milliseconds
    }


def test_memory_does_not_grow_from_run_to_run(engines, machine, images):
    with open_engine(engines / "fp32", machine, REPLAYED) as engine:
        free = []
        for batch in (8, 2, 5) * 30:
            engine.run({"input": images[:batch]})
            free.append(free_memory())
        assert min(free[10:]) >= free[9] - (8 << 20)


def test_closing_an_engine_gives_its_memory_back(engines, machine, images):
    for _ in range(3):
        with open_engine(engines / "fp32", machine, PLAIN) as engine:
            engine.run({"input": images})
        free = free_memory()
    for _ in range(10):
        with open_engine(engines / "fp32", machine, PLAIN) as engine:
            engine.run({"input": images})
    assert free_memory() >= free - (32 << 20)


def test_too_large_a_buffer_is_a_sentence_and_the_gpu_remains_usable(engines, machine, images):
    with pytest.raises(EnginewrightError, match=r"the GPU is out of memory \(\d+ of its \d+ MB are free\)"):
        gpu.Buffer(1 << 50)
    with open_engine(engines / "fp32", machine, PLAIN) as engine:
        assert np.isfinite(engine.run({"input": images})["logits"]).all()


def test_the_gpu_is_watched_while_it_works(engines, machine, images):
    with open_engine(engines / "fp32", machine, REPLAYED) as engine, GpuSampler() as sampler:
        call = engine.bind({"input": images})
        deadline = time.perf_counter() + 1
        while time.perf_counter() < deadline:
            call()
        held = process_megabytes()
    conditions = sampler.conditions()
    print(conditions, f"{held} MB")
    assert conditions.samples > 1
    assert conditions.clock_median > 0
    assert conditions.power_median > 0
    assert held is None or held > 0


def test_the_pace_sees_a_host_that_is_slow_to_launch():
    """NVML does not see it: the GPU is as fast as ever, and waits."""
    read = pace_meter("cuda", 1)
    undisturbed = statistics.median(read() for _ in range(21))
    with SlowLaunches():
        disturbed = statistics.median(read() for _ in range(21))
    print(f"{1e6 * undisturbed:.1f} us, disturbed {1e6 * disturbed:.1f} us")
    assert disturbed > SAME_PACE * undisturbed


def test_torch_tensorrt_computes_what_pytorch_does_and_can_be_raced(machine, images):
    try:
        require_possible((TORCH_TENSORRT,), machine.device)
    except EnginewrightError as error:
        pytest.skip(str(error))
    layers = [(nn.Conv2d(3 if index == 0 else 16, 16, 3, padding=1), nn.ReLU()) for index in range(4)]
    model = nn.Sequential(*itertools.chain(*layers)).eval()
    assert pytorch_contender(model, TORCH_TENSORRT, "cuda", False, {"input": images})() > 0
    given = torch.from_numpy(images).to("cuda")
    with torch.inference_mode():
        wanted = model.to("cuda")(given).to("cpu").numpy()
        got = _compiled(model, [TORCH_TENSORRT], tf32=False)(given).to("cpu").numpy()
    assert relative_error(wanted, got) < LIMITS["fp32"]


def test_a_second_build_finds_the_timings_of_the_first(graphs, machine, exact, manifest, tmp_path, monkeypatch):
    """TensorRT is told to fail rather than to time a kernel. A faster second build proves nothing: the first one also
    loads the library."""
    if machine.runtime != "tensorrt":
        pytest.skip(f"{machine.runtime} keeps no timing cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    configure = TensorRT._configure

    def configure_without_timing(self, builder, blueprint):
        config = configure(self, builder, blueprint)
        config.set_flag(importlib.import_module("tensorrt").BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        return config

    def seconds(name, how=configure):
        monkeypatch.setattr(TensorRT, "_configure", how)
        graph, target = DescribedGraph("fp32", graphs["fp32"], manifest), target_of(machine, exact.tensorrt)
        with building_here():
            return build_engine(graph, target, exact, tmp_path / name).build_seconds

    with pytest.raises(EnginewrightError):
        seconds("without timings", configure_without_timing)
    first = seconds("first")
    print(f"{first} s, with the timings of the first build {seconds('second', configure_without_timing)} s")


def test_a_library_of_plugins_travels_with_its_engine(graphs, machine, exact, manifest, images, tmp_path):
    """Neither stand-in has a plugin: TensorRT refuses the one that it asks for some, and the other one is loaded."""
    if not RUNTIMES[machine.runtime].is_tensorrt:
        pytest.skip(f"{machine.runtime} has no plugins")

    def engine_with(kind):
        library = plugin_library(tmp_path / "own.so", kind)
        options = exact.tensorrt.model_copy(update={"plugins": (str(library),)})
        build = exact.model_copy(update={"tensorrt": options})
        build_engine(
            DescribedGraph("fp32", graphs["fp32"], manifest), target_of(machine, options), build, tmp_path / "engine"
        )
        library.unlink()
        return tmp_path / "engine"

    with open_engine(engine_with("registers nothing"), machine, PLAIN) as engine:
        got = engine.run({"input": images})["logits"]
    assert relative_error(meant(graphs["fp32"], images), got) < LIMITS["fp32"]
    with pytest.raises(EnginewrightError, match=r"the plugin library own\.so .* is refused by TensorRT"):
        engine_with("hands out nothing")


def test_an_interrupt_ends_a_build_within_two_seconds(built_with, tmp_path, monkeypatch):
    """The builder itself may not listen: its process is ended."""
    build_apart(monkeypatch)
    monkeypatch.setenv("SIMULATED_FAILURE", "slow_build")
    interrupted = []

    def interrupt():
        interrupted.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(5, interrupt)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            built_with("engine", "fp16", timing_cache=False, optimization_level=5, avg_timing_iterations=64)
    finally:
        timer.cancel()
    took = time.monotonic() - interrupted[0]
    print(f"{took:.2f} s after the interrupt")
    assert took < 2
    assert not list(tmp_path.iterdir())


def test_nvidias_own_command_builds_the_same_and_runs_it(engines, machine):
    if not RUNTIMES[machine.runtime].is_tensorrt:
        pytest.skip(f"there is none for {machine.runtime}")
    done = subprocess.run(["bash", str(engines / "int8" / "reproduce.sh")], capture_output=True, text=True)
    if any(reason in done.stderr for reason in ("is not on the PATH", "can be loaded by")):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_polygraphy_finds_that_an_engine_computes_what_its_graph_means(engines, graphs, images, precision):
    record = EngineRecord.read(engines / precision / "engine.json")
    write_comparison(record, graphs[precision], [{"input": images}, {"input": images[:3]}], engines / precision)
    script = ["bash", str(engines / precision / "polygraphy.sh")]
    own = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the Python that has the package
    done = subprocess.run(script, env=os.environ | {"PATH": own}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


class SlowLaunches(TorchDispatchMode):
    """Makes each operation cost the host 20 microseconds more, less than the GPU takes for a product of matrices."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        until = time.perf_counter() + 20e-6
        while time.perf_counter() < until:
            pass
        return func(*args, **(kwargs or {}))


def free_memory():
    from cuda.bindings import runtime

    status, free, _ = runtime.cudaMemGetInfo()
    assert not int(status)
    return free

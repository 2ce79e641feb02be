"""What goes wrong on a real GPU: each fault ends in a sentence, loses nothing, and leaves the GPU usable."""

import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from support.errors import error_of
from support.gpu import LIMITS, PLAIN, REPLAYED, meant, relative_error
from support.paths import ROOT

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Profile, Range
from enginewright.engine import gpu
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine, open_engines
from enginewright.engine.machine import target_of

MB = 1 << 20
HOLD = """
import sys
from enginewright.engine import gpu
taken = gpu.Buffer(gpu.free_memory() - int(sys.argv[1]))
print("held", flush=True)
input()
"""
BUILD = """
import pickle, sys
from enginewright.engine.build import DescribedGraph, build_engine
build_engine(*pickle.load(open(sys.argv[1], "rb")))
"""
RUN = """
import sys
from pathlib import Path
import numpy as np
from enginewright.core.params.build import InferenceParams
from enginewright.engine.engine import open_engine
with open_engine(Path(sys.argv[1]), None, InferenceParams(threads=0, cuda_graph=True)) as engine:
    batch = 0
    while True:
        batch = batch % 8 + 2 - batch // 7  # another graph is captured for each size
        engine.run({"input": np.ones((min(max(batch, 2), 8), 3, 8, 8), np.float32)})
        print("ran", flush=True)
"""


@pytest.fixture(autouse=True)
def only_on_a_real_gpu():
    if "SIMULATED_TENSORRT" in os.environ:
        pytest.skip("a simulated GPU has memory and processes of another kind")


@contextmanager
def started(program, *arguments, **more):
    """Run a program in a process of its own, and kill it at the end."""
    command, pipes = [sys.executable, "-c", program, *map(str, arguments)], {"stdin": -1, "stdout": -1, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | more, **pipes) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def held(left):
    """Let another process hold all memory of the GPU but so many bytes."""
    with started(HOLD, left) as child:
        assert child.stdout.readline() == "held\n"
        yield


@pytest.mark.parametrize("left", [20 * MB, 700 * MB], ids=["20 MB left", "700 MB left"])
def test_memory_that_another_process_holds(left, engines, graphs, machine, exact, manifest, images, tmp_path):
    """Building, opening and running either work, or say that there is too little memory."""
    target, said = target_of(machine, exact.tensorrt), {}
    with held(left):
        for name, action in {
            "build": lambda: build_engine(
                DescribedGraph("fp16", graphs["fp16"], manifest), target, exact, tmp_path / "fp16"
            ),
            "run": lambda: run(engines / "fp32", PLAIN),
            "capture": lambda: run(engines / "fp32", REPLAYED),
        }.items():
            try:
                action()
                said[name] = "worked"
            except EnginewrightError as error:
                said[name] = str(error)
    print(said)
    assert all("memory" in text or text == "worked" for text in said.values())
    build_engine(
        DescribedGraph("fp16", graphs["fp16"], manifest), target, exact, tmp_path / "fp16"
    )  # the GPU is as usable as before
    run(engines / "fp32", REPLAYED)
    assert [path.name for path in tmp_path.iterdir()] == ["fp16"]


def run(folder, inference):
    images = np.random.default_rng(3).normal(0, 1, (8, 3, 8, 8)).astype(np.float32)
    with open_engine(folder, None, inference) as engine:
        assert np.isfinite(engine.run({"input": images})["logits"]).all()


def test_a_batch_that_does_not_fit_is_a_sentence(graphs, machine, exact, manifest, tmp_path):
    huge = exact.model_copy(update={"profile": Profile(batch=Range(min=1, opt=8, max=1 << 16))})
    target = target_of(machine, huge.tensorrt)
    with held(2048 * MB):
        try:
            build_engine(DescribedGraph("fp32", graphs["fp32"], manifest), target, huge, tmp_path / "huge")
            said = error_of(open_engine, tmp_path / "huge", machine, PLAIN)
        except EnginewrightError as error:
            said = str(error)
    print(said)
    assert "memory" in said


def test_a_build_that_is_killed_leaves_nothing_that_stops_the_next(graphs, machine, exact, manifest, tmp_path):
    arguments = (
        DescribedGraph("fp16", graphs["fp16"], manifest),
        target_of(machine, exact.tensorrt),
        exact,
        tmp_path / "made" / "fp16",
    )
    (tmp_path / "arguments").write_bytes(pickle.dumps(arguments))
    with started(BUILD, tmp_path / "arguments", MARK=str(tmp_path)):
        time.sleep(6)  # its own process has begun to build
    time.sleep(1)
    going_on = [path for path in Path("/proc").glob("[0-9]*/environ") if f"MARK={tmp_path}".encode() in _read(path)]
    assert not going_on
    build_engine(*arguments)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["fp16"]


def _read(path):
    with suppress(OSError):  # the process has ended
        return path.read_bytes()
    return b""


def test_a_process_that_is_killed_while_it_captures_leaves_the_gpu_usable(engines, machine, images, graphs):
    for _ in range(3):
        with started(RUN, engines / "fp32") as child:
            assert child.stdout.readline() == "ran\n"
        with open_engine(engines / "fp32", machine, REPLAYED) as engine:
            got = engine.run({"input": images})["logits"]
        assert relative_error(meant(graphs["fp32"], images), got) < LIMITS["fp32"]


def test_a_damaged_plan_never_reaches_the_library(engines, machine, tmp_path):
    """500 of them: single bytes, lost ends, and bytes that are no plan."""
    folder, random = tmp_path / "engine", np.random.default_rng(0)
    shutil.copytree(engines / "fp32", folder)
    plan = next(file for file in folder.iterdir() if file.name in ("engine.plan", "engine.onnx"))
    whole = plan.read_bytes()
    for number in range(500):
        place = int(random.integers(0, len(whole)))
        byte = bytes([whole[place] ^ int(random.integers(1, 256))])
        kinds = (whole[:place] + byte + whole[place + 1 :], whole[:place], random.bytes(1000))
        plan.write_bytes(kinds[number % 3])
        assert "is damaged: its hash differs" in error_of(open_engine, folder, machine, PLAIN)


def test_without_a_visible_gpu_there_is_a_sentence():
    code = "from enginewright.engine.runtimes import describe_machine as d; d(sys.argv[1])"
    for runtime in ("tensorrt", "auto"):
        command = [sys.executable, "-c", f"import sys; {code}", runtime]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True
        )
        print(done.stderr.strip().splitlines()[-1])
        assert "GPU" in done.stderr


def test_many_requests_side_by_side_each_get_their_own_answer(engines, machine, graphs, images):
    """10,000 calls from 8 threads with sizes that change: memory stays as it is."""
    questions = {size: images[:size] * (1 + size / 8) for size in range(2, 9)}
    wanted = {size: meant(graphs["fp32"], each) for size, each in questions.items()}
    with ExitStack() as opened:
        asked = [opened.enter_context(one) for one in open_engines(engines / "fp32", machine, REPLAYED, 8)]

        def ask(number, engine, calls):
            random = np.random.default_rng(number)
            for size in random.integers(2, 9, calls):
                assert relative_error(wanted[size], engine.run({"input": questions[size]})["logits"]) < LIMITS["fp32"]

        threads = [opened.enter_context(ThreadPoolExecutor(1)) for _ in asked]  # see verify_engines.py
        clients = list(zip(threads, range(8), asked, strict=True))
        for thread, number, engine in clients:
            thread.submit(ask, number, engine, 50).result()
        before = gpu.free_memory()
        for waiting in [thread.submit(ask, number, engine, 1250) for thread, number, engine in clients]:
            waiting.result()
        print(f"{(before - gpu.free_memory()) / MB:.1f} MB more are in use")
        assert before - gpu.free_memory() < 16 * MB

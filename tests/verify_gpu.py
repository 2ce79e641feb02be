"""The tests that need an NVIDIA GPU: `make verify-gpu` runs them and stops at the first failure.

They verify the runtime that `runtime: auto` chooses, which is TensorRT where it is installed, or the runtime that
ENGINERY_RUNTIME names.
"""

import importlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from support.pass_checks import model_of_text
from support.plugins import plugin_library
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from enginery.bundle.gate import Passed
from enginery.bundle.pages import render
from enginery.cli.refit import refit_engine
from enginery.core.errors import EngineryError
from enginery.core.params.benchmark import TORCH_TENSORRT, BenchmarkParams
from enginery.core.params.build import Profile, Range
from enginery.core.params.inference import InferenceParams
from enginery.core.params.precisions import Keep
from enginery.core.precisions import PRECISIONS
from enginery.core.runtimes import RUNTIMES
from enginery.engine.build import build_engine
from enginery.engine.engine import open_engine, open_engines
from enginery.engine.gpu import cuda
from enginery.engine.gpu.nvml import GpuSampler, process_megabytes
from enginery.engine.gpu.session import DeviceSession
from enginery.engine.polygraphy import write_comparison
from enginery.engine.record import EngineRecord
from enginery.engine.runtimes import tensorrt
from enginery.engine.runtimes.onnxruntime_layout import LAYOUTS
from enginery.engine.runtimes.onnxruntime_session import optimize
from enginery.engine.runtimes.onnxruntime_trial import try_in_own_process
from enginery.engine.runtimes.tensorrt import TensorRT
from enginery.engine.target import target_of
from enginery.engine.this_machine import describe_machine
from enginery.graph.as_written import open_as_written, run_as_written, run_graph
from enginery.graph.data_apart import in_memory
from enginery.graph.interface import Blueprint, Interface, TensorSpec
from enginery.graph.onnx_file import load_graph, save_graph
from enginery.graph.read_interface import read_blueprint
from enginery.quantization.cast import cast
from enginery.quantization.quantize import quantize
from enginery.quantization.write_blocks import write_blocks
from enginery.speed.contenders import _compiled, pytorch_contender, require_possible
from enginery.speed.isolated import measure_engine_isolated
from enginery.speed.machine_pace import pace_meter
from enginery.speed.records import SAME_PACE, Trace

PLAIN, REPLAYED = InferenceParams(threads=0, cuda_graph=False), InferenceParams(threads=0, cuda_graph=True)
KEEP = Keep(op_types=(), nodes=())
# How far from its graph an engine may be. Another order of sums leaves 1e-5 in fp32, TF32 would leave 3e-4.
LIMITS = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 4e-2, "int8": 2e-2}
BLOCKS = [name for name, facts in PRECISIONS.items() if facts.block]


@pytest.fixture(scope="session")
def machine():
    here = describe_machine(os.environ.get("ENGINERY_RUNTIME", "auto"))
    if here.device != "cuda" or not here.capability:
        pytest.exit(f"no GPU to verify: the runtime here is {here.runtime} on {here.device_name}", returncode=1)
    print(f"\n{here.runtime} {here.runtime_version} on {here.device_name}, driver {here.driver}, CUDA {here.cuda}")
    return here


@pytest.fixture(scope="session")
def graphs(tiny_onnx, tmp_path_factory):
    """The tiny classifier in each precision."""
    folder = tmp_path_factory.mktemp("graphs")
    ranges = dict.fromkeys(["input", *(name for node in load_graph(tiny_onnx).graph.node for name in node.output)], 8.0)
    made = {"fp32": load_graph(tiny_onnx)}
    made |= {name: cast(tiny_onnx, name, KEEP) for name in ("fp16", "bf16")}
    made["int8"] = quantize(tiny_onnx, "int8", ranges, KEEP, rest="fp32")
    for name, graph in made.items():
        save_graph(graph, folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in made}


@pytest.fixture(scope="session")
def exact(build):
    return build.model_copy(update={"tf32": False})


@pytest.fixture(scope="session")
def engines(graphs, machine, exact, manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    for name in filter(lambda name: is_for(machine, name), graphs):
        build_engine(name, graphs[name], target_of(machine, exact.tensorrt), exact, manifest, folder / name)
    return folder


@pytest.fixture(params=LIMITS)
def precision(request, machine):
    if not is_for(machine, request.param):
        pytest.skip(f"a GPU of compute capability {machine.capability} does not have {request.param}")
    return request.param


def is_for(machine, precision):
    """Tell whether the GPU has a precision. ONNX Runtime executes any, in float32 if need be."""
    capability = tuple(map(int, machine.capability.split(".")))
    return machine.runtime == "onnxruntime" or capability >= PRECISIONS[precision].since


@pytest.fixture
def images():
    return np.random.default_rng(3).normal(0, 1, (8, 3, 8, 8)).astype(np.float32)


def meant(onnx, images):
    """Return what the graph says that the logits are."""
    return run_as_written(onnx)({"input": images})["logits"]


def relative_error(wanted, got):
    return np.linalg.norm(wanted - got) / np.linalg.norm(wanted)


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_an_engine_computes_what_its_graph_means_at_every_batch_size(
    engines, graphs, machine, images, precision, inference
):
    with open_engine(engines / precision, machine, inference) as engine:
        for batch in (8, 2, 5, 8, 3):  # back and forth: the graph of one shape must not be replayed for another
            got = engine.run({"input": images[:batch]})["logits"]
            assert relative_error(meant(graphs[precision], images[:batch]), got) < LIMITS[precision], (
                f"at batch {batch}"
            )


@pytest.mark.parametrize("in_blocks", BLOCKS)
def test_products_in_blocks_compute_what_their_graph_means(machine, exact, manifest, tmp_path, in_blocks):
    if not is_for(machine, in_blocks):
        pytest.skip(f"a GPU of compute capability {machine.capability} does not have {in_blocks}")
    random = np.random.default_rng(4)
    weights = {name: random.normal(0, 0.1, (64, 64)).astype(np.float32) for name in "wv"}
    nodes = "[up] u = MatMul (input, w) h = Gelu (u) [down] d = MatMul (h, v) logits = Add (d, input)"
    graph = model_of_text(f"g (float[batch,9,64] input) => (float[batch,9,64] logits) {{ {nodes} }}", weights)
    onnx = tmp_path / "model.onnx"
    save_graph(write_blocks(graph, in_blocks, {"up": 5.0, "down": 2.0}).model, onnx)
    build_engine(in_blocks, onnx, target_of(machine, exact.tensorrt), exact, manifest, tmp_path / "engine")
    tokens = random.normal(0, 1, (5, 9, 64)).astype(np.float32)
    with open_engine(tmp_path / "engine", machine, PLAIN) as engine:
        print(f"{in_blocks}: {engine.record.executed}")
        assert relative_error(meant(onnx, tokens), engine.run({"input": tokens})["logits"]) < LIMITS["int8"]


def test_an_engine_says_whether_it_is_replayed(engines, machine, precision):
    """TensorRT always replays, and ONNX Runtime where it runs no node on the CPU, as here."""
    with open_engine(engines / precision, machine, PLAIN) as engine:
        assert not engine.replays
    with open_engine(engines / precision, machine, REPLAYED) as engine:
        print(f"{precision}: {'replayed' if engine.replays else 'launched one by one'}")
        assert engine.replays


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_depthwise_convolutions_in_fp16_are_right_after_another_batch_size(
    machine, exact, manifest, tmp_path, inference
):
    """ONNX Runtime compiles their kernels for a shape, and lost them at the next while CUDA graphs still named them."""
    random = np.random.default_rng(5)
    weights = {"w": random.normal(0, 0.3, (32, 1, 5, 5)).astype(np.float32)}
    conv = "Conv <group = 32, pads = [2, 2, 2, 2], strides = [2, 2]> (input, w)"
    head = "h = HardSwish (c) logits = GlobalAveragePool (h)"
    text = f"g (float[batch,32,56,56] input) => (float[batch,32,1,1] logits) {{ c = {conv} {head} }}"
    save_graph(model_of_text(text, weights), tmp_path / "fp32.onnx")
    save_graph(cast(tmp_path / "fp32.onnx", "fp16", KEEP), tmp_path / "fp16.onnx")
    target = target_of(machine, exact.tensorrt)
    build_engine("fp16", tmp_path / "fp16.onnx", target, exact, manifest, tmp_path / "engine")
    with open_engine(tmp_path / "engine", machine, inference) as engine:
        for batch in (2, 4, 2, 3, 4):
            images = random.normal(0, 1, (batch, 32, 56, 56)).astype(np.float32)
            (wanted,) = run_graph(open_as_written(tmp_path / "fp32.onnx"), {"input": images}).values()
            assert relative_error(wanted, engine.run({"input": images})["logits"]) < LIMITS["fp16"], batch


def test_each_layout_of_images_can_be_tried_and_answers_alike(graphs, machine, exact):
    if machine.runtime != "onnxruntime":
        pytest.skip("other runtimes choose layouts by themselves")
    blueprint = read_blueprint(graphs["fp32"], exact)
    first, *others = trials = [try_in_own_process(graphs["fp32"], blueprint, layout) for layout in LAYOUTS]
    print(" ".join(f"{1e6 * trial.seconds:.0f} us" for trial in trials))
    for trial in others:
        assert relative_error(first.answers["logits"], trial.answers["logits"]) < LIMITS["fp32"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bundle_opens_the_engine_as_it_was_validated(layout, engines, graphs, machine, exact, images, tmp_path):
    if machine.runtime != "onnxruntime":
        pytest.skip("only this runtime must be told how an engine lays out images")
    record = EngineRecord.read(engines / "fp16" / "engine.json")
    folder = tmp_path / "engine"
    folder.mkdir()
    optimize(graphs["fp16"], folder, exact, layout)
    settings = Passed(folder, graphs["fp16"], record, None, machine).settings
    assert settings == {"use_tf32": "0", **layout}
    benchmark, batch = SimpleNamespace(threads=0), record.profile.batch
    facts = {"target": record.target, "settings": settings, "batch": batch, "sizes": {}, "benchmark": benchmark}
    exec(render("runtime/onnxruntime.py.j2", facts | {"input": "input"}), example := {})
    answered = example["load"](folder, images.shape)(images)[0]
    assert relative_error(meant(graphs["fp16"], images), answered) < LIMITS["fp16"]
    script = render("reproduce-onnxruntime.sh.j2", facts).replace("SECONDS = 5", "SECONDS = 0.2")
    (tmp_path / "reproduce.sh").write_text(script)
    done = subprocess.run(["bash", tmp_path / "reproduce.sh"], capture_output=True, text=True)
    print(f"{layout}: {done.stdout}")
    assert done.stdout.endswith("calls in CUDAExecutionProvider\n"), done.stderr


@pytest.mark.parametrize("shares", [False, True], ids=["", "in turns"])
@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_requests_side_by_side_get_the_answers_to_their_own_questions(engines, machine, images, inference, shares):
    inference = inference.model_copy(update={"share_scratch": shares})
    questions = [images, images[::-1].copy(), images + 1]
    with ExitStack() as opened:
        asked = [opened.enter_context(one) for one in open_engines(engines / "fp32", machine, inference, 3)]
        # As in throughput.py, each has a thread of its own, and the first calls follow one another: ONNX Runtime
        # captures a graph for each thread, and calls of other threads fail meanwhile.
        threads = [opened.enter_context(ThreadPoolExecutor(1)) for _ in asked]
        clients = list(zip(threads, asked, questions, strict=True))

        def ask(engine, question):
            return engine.run({"input": question})["logits"]

        isolated = [thread.submit(ask, engine, question).result() for thread, engine, question in clients]
        waiting = [[thread.submit(ask, engine, question) for _ in range(50)] for thread, engine, question in clients]
        for wanted, answers in zip(isolated, waiting, strict=True):
            assert all(np.allclose(wanted, answer.result(), atol=1e-5) for answer in answers)


def test_what_was_executed_is_known(engines, machine, precision):
    record = EngineRecord.read(engines / precision / "engine.json")
    print(f"{precision}: {record.executed}")
    assert record.executed
    if machine.runtime == "tensorrt":  # ONNX Runtime executes bfloat16 and int8 as float32, and says so
        assert record.share_as_asked > 0.5


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
    session = DeviceSession(cuda.Stream(), Idle(), Blueprint(interface, build), replay=False)
    try:
        assert np.isnan(session.run({"input": np.ones((5, 3), np.float32)})["logits"]).all()
    finally:
        session.close()


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_several_inputs_outputs_and_sizes_are_computed_as_the_graph_means(
    pair_onnx, pair_build, pair_feeds, machine, manifest, tmp_path, inference
):
    build = pair_build.model_copy(update={"tf32": False})
    build_engine("fp32", pair_onnx, target_of(machine, build.tensorrt), build, manifest, tmp_path / "pair")
    session = open_as_written(pair_onnx)
    with open_engine(tmp_path / "pair", machine, inference) as engine:
        for sizes in ((2, 8, 8), (4, 16, 12), (1, 13, 9), (2, 8, 8)):  # a graph serves only its own sizes
            feeds = pair_feeds(*sizes)
            wanted, got = run_graph(session, feeds), engine.run(feeds)
            assert got.keys() == wanted.keys()
            for name, values in wanted.items():
                assert relative_error(values, got[name]) < LIMITS["fp32"], f"{name} at {sizes}"


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_an_engine_with_several_profiles_computes_the_same_in_each(
    pair_onnx, pair_build, pair_feeds, machine, manifest, tmp_path, inference
):
    """Calls go back and forth between profiles, which replays must follow."""
    small, large = ({"batch": Range(min=size, opt=size, max=size)} for size in (1, 4))
    build = pair_build.model_copy(update={"tf32": False, "profiles": (small, large)})
    record = build_engine("fp32", pair_onnx, target_of(machine, build.tensorrt), build, manifest, tmp_path / "pair")
    print({number: sum(one.profile == number for one in record.tuned_layers) for number in (1, 2)}, "layers")
    with open_engine(tmp_path / "pair", machine, inference) as engine:
        for sizes in ((1, 8, 8), (4, 16, 12), (2, 8, 8), (1, 13, 9), (1, 8, 8), (3, 8, 8)):
            feeds = pair_feeds(*sizes)
            wanted, got = run_graph(open_as_written(pair_onnx), feeds), engine.run(feeds)
            for name, values in wanted.items():
                assert relative_error(values, got[name]) < LIMITS["fp32"], f"{name} at {sizes}"


@pytest.fixture
def built_with(graphs, machine, exact, manifest, tmp_path):
    """Make engines with options that only TensorRT has."""
    if machine.runtime == "onnxruntime":
        pytest.skip("ONNX Runtime has no such engines")

    def build(name, precision, **options):
        chosen = exact.model_copy(update={"tensorrt": exact.tensorrt.model_copy(update=options)})
        target = target_of(machine, chosen.tensorrt)
        record = build_engine(precision, graphs[precision], target, chosen, manifest, tmp_path / name)
        return record, tmp_path / name

    return build


def test_a_stripped_engine_computes_what_its_graph_means(built_with, graphs, machine, images, precision):
    """The tiny graph is small, so the plan may be hardly smaller."""
    whole, _ = built_with("whole", precision)
    for refit in (False, True):
        record, folder = built_with(f"stripped, refit {refit}", precision, weights="stripped", refit=refit)
        print(f"{precision}, refit {refit}: {record.bytes} of {whole.bytes} bytes")
        assert record.bytes < whole.bytes
        with open_engine(folder, machine, REPLAYED) as engine:
            got = engine.run({"input": images})["logits"]
        assert relative_error(meant(graphs[precision], images), got) < LIMITS[precision]


@pytest.mark.parametrize("weights", ["inside", "stripped"])
def test_other_weights_can_be_put_into_an_engine(built_with, graphs, machine, images, precision, tmp_path, weights):
    """NVIDIA knows of versions that lose the bias of a matrix product here: `enginery refit` refuses then."""
    record, folder = built_with("refittable", precision, weights=weights, refit=True)
    write_comparison(record, graphs[precision], [{"input": images}], folder)
    model = in_memory(load_graph(graphs[precision]))
    kernel = next(each for each in model.graph.initializer if list(each.dims) == [32, 32, 3, 3])
    kernel.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(kernel), kernel.name))
    save_graph(model, tmp_path / "model.onnx")
    print(f"{precision}: {refit_engine(folder, tmp_path / 'model.onnx', tmp_path / 'refitted')}")
    with open_engine(tmp_path / "refitted", machine, PLAIN) as engine:
        got = engine.run({"input": images})["logits"]
    wanted = meant(tmp_path / "model.onnx", images)
    assert relative_error(wanted, got) < LIMITS[precision]
    assert relative_error(meant(graphs[precision], images), wanted) > LIMITS[precision]


def test_an_engine_that_streams_its_weights_computes_the_same(built_with, graphs, machine, images, precision):
    _, folder = built_with("streaming", precision, streaming=True)
    for mb in (0, "auto", "all"):
        with open_engine(folder, machine, REPLAYED.model_copy(update={"weights_on_gpu_mb": mb})) as engine:
            got = engine.run({"input": images})["logits"]
            print(f"{precision}: {mb} on the GPU, {'replayed' if engine.replays else 'launched one by one'}")
        assert relative_error(meant(graphs[precision], images), got) < LIMITS[precision]


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_the_size_of_an_output_may_follow_from_the_images(
    coarse_onnx, pair_build, pair_feeds, machine, manifest, tmp_path, inference
):
    if machine.runtime == "onnxruntime":
        pytest.skip("ONNX Runtime on a GPU refuses it")
    build = pair_build.model_copy(update={"tf32": False})
    build_engine("fp32", coarse_onnx, target_of(machine, build.tensorrt), build, manifest, tmp_path / "coarse")
    with open_engine(tmp_path / "coarse", machine, inference) as engine:
        for sizes in ((2, 8, 8), (4, 16, 12), (1, 13, 9), (2, 8, 8)):
            feeds = {"image": pair_feeds(*sizes)["image"]}
            wanted, got = run_graph(open_as_written(coarse_onnx), feeds)["map"], engine.run(feeds)["map"]
            assert got.shape == wanted.shape
            assert relative_error(wanted, got) < LIMITS["fp32"], f"at {sizes}"


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_the_size_of_an_output_may_follow_from_values(
    chosen_onnx, chosen_feeds, machine, exact, manifest, tmp_path, inference, capfd
):
    if machine.runtime == "onnxruntime":
        pytest.skip("ONNX Runtime on a GPU refuses it")
    build_engine("fp32", chosen_onnx, target_of(machine, exact.tensorrt), exact, manifest, tmp_path / "chosen")
    with ExitStack() as opened:
        engines = [opened.enter_context(one) for one in open_engines(tmp_path / "chosen", machine, inference, 2)]
        for batch, count in ((2, 3), (8, 6), (8, 1), (2, 3), (3, 5)):  # larger and smaller ones take turns
            feeds = chosen_feeds(batch, count)
            wanted = run_graph(open_as_written(chosen_onnx), feeds)
            for engine in engines:
                engine.bind(feeds)()
                got = engine.run(feeds)
                assert got["largest"].shape == (batch, count)
                assert list(got) == list(wanted)
                assert all(np.array_equal(got[name], values) for name, values in wanted.items())
            assert not engines[0].replays
    assert ("runs without a CUDA graph" in capfd.readouterr().err) == inference.cuda_graph


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_the_values_of_an_input_may_be_sizes(sized_onnx, sized_build, machine, manifest, tmp_path, images, inference):
    """Each call has another size than the last one, of another profile, or only other images."""
    if machine.runtime == "onnxruntime":
        pytest.skip("ONNX Runtime on a GPU refuses it")
    large = {"rows": Range(min=12, opt=16, max=16), "columns": Range(min=4, opt=16, max=16)}
    build = sized_build.model_copy(update={"profiles": (large,), "tf32": False})
    build_engine("fp32", sized_onnx, target_of(machine, build.tensorrt), build, manifest, tmp_path / "sized")
    with open_engine(tmp_path / "sized", machine, inference) as engine:
        for rows, columns, batch in ((6, 6, 2), (6, 7, 2), (6, 7, 2), (16, 16, 2), (4, 16, 4), (16, 4, 4), (6, 6, 1)):
            feeds = {"image": images[:batch] + rows, "sizes": np.array([rows, columns])}
            wanted = run_graph(open_as_written(sized_onnx), feeds)["map"]
            for got in (engine.run(feeds)["map"], engine.run(feeds)["map"]):
                assert got.shape == (batch, 3, 2 * rows, 2 * columns)
                assert relative_error(wanted, got) < LIMITS["fp32"], f"at {rows} x {columns}"
        call, other = (engine.bind({"image": images[:2], "sizes": np.array(sizes)}) for sizes in ([5, 5], [9, 4]))
        for each in (call, other, call):
            assert each() > 0
        assert engine.replays == inference.cuda_graph


def test_a_bound_call_keeps_its_inputs_while_others_are_run(engines, machine, images):
    with open_engine(engines / "fp32", machine, REPLAYED) as engine:
        call = engine.bind({"input": images[:4]})
        wanted = engine.run({"input": images[:4]})["logits"]
        engine.run({"input": images[4:]})
        call()
        assert np.array_equal(engine.run({"input": images[:4]})["logits"], wanted)


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
    by_itself = measure_engine_isolated(*places, REPLAYED, params, samples.cycled(8))
    with open_engine(engines / "fp32", machine, REPLAYED) as engine:
        call = engine.bind(samples.cycled(8))
        here = 1000 * statistics.median(call() for _ in range(300))
    print(by_itself.memory, by_itself.compute, f"{here:.4f} ms here at batch 8")
    assert by_itself.compute.keys() == {2, 8}
    assert min(by_itself.compute.values()) > 0
    for calls in by_itself.calls.values():
        assert len(calls) > 1
        for call, following in itertools.pairwise(calls):
            assert 0 < call.copying_in < call.computing < call.copying_out < call.done < following.copying_in
            assert 0 < call.enqueuing < call.enqueued < following.enqueuing
    assert by_itself.memory.device is None or by_itself.memory.device > 0


def test_layers_take_together_about_what_the_whole_takes(graphs, machine, exact, manifest, samples, tmp_path):
    """The batch is large enough to keep a real GPU busy, so that the times of launches do not count."""
    batch, engine = 512 if "SIMULATED_TENSORRT" in os.environ else 2048, tmp_path / "engine"
    large = exact.model_copy(update={"profile": Profile(batch=Range(min=1, opt=batch, max=batch))})
    build_engine("fp32", graphs["fp32"], target_of(machine, large.tensorrt), large, manifest, engine)

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
    with pytest.raises(EngineryError, match=r"the GPU is out of memory \(\d+ of its \d+ MB are free\)"):
        cuda.Buffer(1 << 50)
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
    except EngineryError as error:
        pytest.skip(str(error))
    layers = [(nn.Conv2d(3 if index == 0 else 16, 16, 3, padding=1), nn.ReLU()) for index in range(4)]
    model = nn.Sequential(*itertools.chain(*layers)).eval()
    assert pytorch_contender(model, TORCH_TENSORRT, "cuda", False, {"input": images})() > 0
    given = torch.from_numpy(images).to("cuda")
    with torch.inference_mode():
        wanted = model.to("cuda")(given).to("cpu").numpy()
        got = _compiled(model, [TORCH_TENSORRT], tf32=False)(given).to("cpu").numpy()
    assert relative_error(wanted, got) < LIMITS["fp32"]


def test_tf32_is_used_only_if_it_is_allowed(graphs, engines, machine, build, manifest, images, tmp_path):
    assert "tf32" not in EngineRecord.read(engines / "fp32" / "engine.json").executed
    build_engine("fp32", graphs["fp32"], target_of(machine, build.tensorrt), build, manifest, tmp_path / "tf32")
    with open_engine(tmp_path / "tf32", machine, PLAIN) as engine:
        got = engine.run({"input": images})["logits"]
    assert relative_error(meant(graphs["fp32"], images), got) < 5e-3


def test_a_second_build_finds_the_timings_of_the_first(graphs, machine, exact, manifest, tmp_path, monkeypatch):
    """TensorRT is told to fail rather than to time a kernel. A faster second build proves nothing: the first one also
    loads the library."""
    if machine.runtime != "tensorrt":
        pytest.skip(f"{machine.runtime} keeps no timing cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    configure = TensorRT._configure
    in_this_process = lambda _, function, *arguments: function(*arguments)  # noqa: E731
    monkeypatch.setattr(tensorrt, "run_apart", in_this_process)

    def configure_without_timing(self, builder, blueprint):
        config = configure(self, builder, blueprint)
        config.set_flag(importlib.import_module("tensorrt").BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        return config

    def seconds(name, how=configure):
        monkeypatch.setattr(TensorRT, "_configure", how)
        target = target_of(machine, exact.tensorrt)
        return build_engine("fp32", graphs["fp32"], target, exact, manifest, tmp_path / name).build_seconds

    with pytest.raises(EngineryError):
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
        build_engine("fp32", graphs["fp32"], target_of(machine, options), build, manifest, tmp_path / "engine")
        library.unlink()
        return tmp_path / "engine"

    with open_engine(engine_with("registers nothing"), machine, PLAIN) as engine:
        got = engine.run({"input": images})["logits"]
    assert relative_error(meant(graphs["fp32"], images), got) < LIMITS["fp32"]
    with pytest.raises(EngineryError, match=r"the plugin library own\.so .* is refused by TensorRT"):
        engine_with("hands out nothing")


def test_an_interrupt_ends_a_build_within_two_seconds(built_with, tmp_path, monkeypatch):
    """The builder itself may not listen: its process is ended."""
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

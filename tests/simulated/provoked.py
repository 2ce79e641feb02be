"""Provoke failures of TensorRT on the simulated machine: tests/engine/test_simulation.py runs this with pytest.

Each failure is one sentence, leaves no unfinished engine, and frees all memory.
"""

import contextlib
import ctypes
import gc
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
import tensorrt as trt
import torch
from onnx import numpy_helper
from support.builds import build_apart, building_here
from support.errors import error_of
from support.plugins import plugin_library, run_once

from enginewright.cli.commands.refit import refit_engine
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.params.build import InferenceParams, Range
from enginewright.core.params.precisions import Keep
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.description import describe_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.gpu import GpuSampler, Stream, process_megabytes
from enginewright.engine.machine import lacking, target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.engine.runtimes.gpu_session import DeviceSession
from enginewright.engine.runtimes.tensorrt_library import read_timing_cache
from enginewright.engine.tools import write_comparison
from enginewright.graph.as_written import DOMAIN, FP4_QUANTIZE, MXFP8_QUANTIZE, open_as_written, run_graph
from enginewright.graph.interface import Blueprint, Interface, TensorSpec
from enginewright.graph.onnx_file import count_nodes, load_graph, save_graph
from enginewright.measure.benchmark import trace_engine
from enginewright.measure.contenders import pytorch_contender
from enginewright.measure.records import ENGINE, LAUNCHED
from enginewright.pipeline import speed
from enginewright.pipeline.speed import require_possible
from enginewright.precision.cast import cast
from enginewright.precision.quantize import quantize
from simulated import cudart
from simulated.tensorrt import with_version

HAS_TILING = hasattr(trt, "TilingOptimizationLevel")
PLAIN, REPLAYED = InferenceParams(threads=0, cuda_graph=False), InferenceParams(threads=0, cuda_graph=True)


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "enginewright" / "timing"


@pytest.fixture(autouse=True)
def nothing_stays_allocated():
    yield
    gc.collect()
    assert not any(cudart.allocated().values())


@pytest.fixture(scope="module")
def gpu():
    return describe_machine("auto")


@pytest.fixture
def make(tiny_onnx, gpu, build, manifest, tmp_path):
    def make(name="engine", **changes):
        chosen = build.model_copy(update={"tensorrt": build.tensorrt.model_copy(update=changes)})
        build_engine(
            DescribedGraph("fp32", tiny_onnx, manifest), target_of(gpu, chosen.tensorrt), chosen, tmp_path / name
        )
        return tmp_path / name

    return make


@pytest.fixture
def fail(monkeypatch):
    return lambda what: monkeypatch.setenv("SIMULATED_FAILURE", what)


@pytest.fixture(scope="module", autouse=True)
def built_here():
    with building_here():
        yield


@pytest.fixture
def images():
    return np.random.default_rng(1).normal(0, 1, (8, 3, 8, 8)).astype(np.float32)


def load(folder):
    """Load a plan without the check of its hash."""
    blueprint = EngineRecord.read(folder / "engine.json").blueprint
    return load_runtime("tensorrt").load(folder, blueprint, PLAIN, 1)


def refusal(action):
    with pytest.raises(EnginewrightError) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_simulated_gpu_is_taken_by_auto(gpu):
    assert (gpu.runtime, gpu.device, gpu.capability, gpu.driver) == ("tensorrt", "cuda", "8.9", "590.10")


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (
            "build_none",
            "Could not find any implementation for node .*TensorRT also says so when memory does not suffice",
        ),
        ("out_of_memory_build", "out of memory.*lower build.profile.batch.max, or end other programs"),
    ],
)
def test_a_build_that_fails_gives_tensorrts_reason(make, fail, tmp_path, failure, words):
    fail(failure)
    sentence = refusal(make)
    assert sentence.startswith("TensorRT cannot build ")
    assert re.search(words, sentence), sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("precision", "capability"), [("bf16", "7.5"), ("fp8", "8.6")])
def test_a_precision_that_the_gpu_lacks_is_refused_with_the_way_out(
    tiny_onnx, build, manifest, tmp_path, monkeypatch, precision, capability
):
    monkeypatch.setenv("SIMULATED_CAPABILITY", capability)
    here, typed, keep = describe_machine("tensorrt"), tmp_path / "typed.onnx", Keep(op_types=(), nodes=())
    tensors = ["input", *(name for node in load_graph(tiny_onnx).graph.node for name in node.output)]
    quantized = precision == "fp8"
    graph = quantize(tiny_onnx, "fp8", dict.fromkeys(tensors, 4.0), keep, "fp16") if quantized else None
    save_graph(graph or cast(tiny_onnx, precision, keep), typed)
    target = target_of(here, build.tensorrt)
    sentence = refusal(
        lambda: build_engine(DescribedGraph(precision, typed, manifest), target, build, tmp_path / "engine")
    )
    assert f"require hardware with {precision.upper()} support" in sentence
    assert sentence.endswith("delete its section of `precisions`, if you do not need it")
    assert lacking(target, precision) == [capability]


def test_without_memory_for_tensorrt_itself_neither_a_build_nor_an_engine_begins(make, gpu, monkeypatch):
    """With 20 MB left, a real one crashed."""
    folder = make()
    monkeypatch.setenv("SIMULATED_MEMORY", "20000000")
    assert refusal(lambda: make("other")) == (
        "the GPU has 20 MB of free memory, too little before TensorRT starts: end other programs that use it"
    )
    assert "too little before TensorRT starts" in refusal(lambda: open_engine(folder, gpu, PLAIN))


def test_an_engine_that_cannot_be_deserialized_says_why(make, gpu, fail):
    folder = make()
    fail("deserialize_none")
    sentence = refusal(lambda: open_engine(folder, gpu, PLAIN))
    assert sentence.startswith(f"TensorRT cannot load {folder / 'engine.plan'}: ")
    assert "Run `dvc repro` to build it again" in sentence


def test_a_plan_of_another_tensorrt_is_refused_in_its_words(make):
    folder = make()
    plan = folder / "engine.plan"
    version = load_runtime("tensorrt").version()
    plan.write_bytes(plan.read_bytes().replace(version.encode(), version.replace("1", "0").encode()))
    assert "ersion tag does not match" in refusal(lambda: load(folder))


@pytest.mark.parametrize("damage", [lambda plan: b"", lambda plan: plan[:-100], lambda plan: b"\x08" + plan])
def test_a_damaged_plan_is_refused(make, damage):
    folder = make()
    plan = folder / "engine.plan"
    plan.write_bytes(damage(plan.read_bytes()))
    assert refusal(lambda: load(folder)).startswith("TensorRT cannot load ")


def test_an_engine_of_another_gpu_is_refused_before_tensorrt_sees_it(make, gpu):
    folder = make()
    other = gpu.model_copy(update={"device_name": "NVIDIA A100", "capability": "8.0"})
    sentence = refusal(lambda: open_engine(folder, other, PLAIN))
    assert "device_name 'Simulated GPU' there and 'NVIDIA A100' here" in sentence
    assert "compute capability 8.9 there and 8.0 here" in sentence


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("wrong_shape", r"output logits would have shape \(9, 16\) at batch 8, and \(8, 16\) was recorded"),
        ("execute_false", "TensorRT cannot run the engine: "),
        ("cudaMemcpyAsync", "CUDA failed in cudaMemcpyAsync: "),
        ("cudaStreamSynchronize", "CUDA failed in cudaStreamSynchronize: "),
    ],
)
def test_a_run_that_fails_is_a_sentence(make, gpu, fail, images, inference, failure, words):
    with open_engine(make(), gpu, inference) as engine:
        fail(failure)
        with pytest.raises(EnginewrightError, match=words):
            engine.run({"input": images})


def test_a_cleanup_that_fails_as_well_does_not_hide_the_cause(make, gpu, fail, images):
    """After a fault on the GPU every call fails. Memory that is then still allocated is freed with the process."""
    engine = open_engine(make(), gpu, PLAIN)
    fail("execute_false,cudaFree,cudaFreeHost,cudaEventDestroy,cudaStreamDestroy,cudaGraphExecDestroy")
    with pytest.raises(EnginewrightError, match="TensorRT cannot run the engine: "), engine:
        engine.run({"input": images})
    fail("")
    cudart.forget()


def test_an_engine_that_cannot_run_its_largest_batch_is_tuned_for_it(make, gpu, fail, images):
    fail("beyond_tuned")
    record = EngineRecord.read(make() / "engine.json")
    assert record.profile.batch == Range(min=2, opt=8, max=8)
    assert record.remark.startswith("it is tuned for batch 8: tuned for 4, it could not run 8 (TensorRT cannot run ")
    assert "Myelin" in record.remark


@pytest.mark.parametrize(
    ("failure", "also"), [("wrong_beyond_tuned", ""), ("wrong_at_largest", "; tuned for 8 it answered otherwise in")]
)
def test_an_engine_that_answers_otherwise_at_its_largest_batch_is_tuned_for_it(make, fail, failure, also):
    fail(failure)
    record = EngineRecord.read(make() / "engine.json")
    assert record.profile.batch == Range(min=2, opt=8, max=8)
    why = "it is tuned for batch 8: tuned for 4, it answered otherwise in a batch of 8 than of 2"
    assert record.remark.startswith(why + also)


def test_what_fails_at_a_level_is_tried_at_a_more_thorough_one(make, gpu, fail, monkeypatch, built_here):
    monkeypatch.setattr("enginewright.engine.runtimes.tensorrt.SCARCE", 0)  # memory is no reason
    fail("kernels_below_4")
    record = EngineRecord.read(make() / "engine.json")
    assert record.build.tensorrt.optimization_level == 4
    assert record.remark.startswith("it is built at optimization level 4, as TensorRT failed at 3 ([weightsPtr.h")
    fail("kernels_below_4,beyond_tuned")
    assert "; it is tuned for batch 8" in EngineRecord.read(make("both") / "engine.json").remark
    fail("build_none")
    with pytest.raises(EnginewrightError, match=r"cannot build .* insufficient workspace"):
        make("neither")


@pytest.mark.parametrize("failure", ["not_capturable", "cudaGraphInstantiate"])
def test_an_engine_that_cannot_be_captured_runs_without_a_cuda_graph(make, gpu, fail, images, capsys, failure):
    folder = make()
    with open_engine(folder, gpu, PLAIN) as engine:
        wanted = engine.run({"input": images})["logits"]
    fail(failure)
    with open_engine(folder, gpu, REPLAYED) as engine:
        assert engine.replays
        assert np.array_equal(engine.run({"input": images})["logits"], wanted)
        assert np.array_equal(engine.run({"input": images[:5]})["logits"], wanted[:5])
        assert not engine.replays
    assert capsys.readouterr().err.count("the engine runs without a CUDA graph (inference.cuda_graph): ") == 1


def test_an_output_that_the_gpu_has_no_room_for_is_a_sentence(
    chosen_onnx, chosen_feeds, gpu, build, manifest, tmp_path, fail
):
    build_engine(
        DescribedGraph("fp32", chosen_onnx, manifest), target_of(gpu, build.tensorrt), build, tmp_path / "chosen"
    )
    with open_engine(tmp_path / "chosen", gpu, PLAIN) as engine:
        for count in (1, 5):  # at first, and where the room of the call before does not suffice
            fail("cudaMalloc")
            assert error_of(engine.run, chosen_feeds(4, count)) == "CUDA failed in cudaMalloc: cudaErrorUnknown"
            fail("")
            assert engine.run(chosen_feeds(4, count))["largest"].shape == (4, count)


def test_an_output_may_be_empty_at_first(chosen_onnx, chosen_feeds, gpu, build, manifest, tmp_path):
    """TensorRT asks for no bytes then, and takes no null pointer."""
    build_engine(
        DescribedGraph("fp32", chosen_onnx, manifest), target_of(gpu, build.tensorrt), build, tmp_path / "chosen"
    )
    with open_engine(tmp_path / "chosen", gpu, PLAIN) as engine:
        for count in (0, 2):
            assert engine.run(chosen_feeds(4, count))["largest"].shape == (4, count)


def test_a_batch_that_follows_from_values_is_refused(build):
    class Selects:
        replays = False

        def announce(self, shapes, values):
            return {"boxes": (-1, 4)}

        def close(self):
            pass

    interface = Interface(
        inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 3)),),
        outputs=(TensorSpec(name="boxes", dtype="float32", shape=("batch", 4)),),
    )
    said = error_of(DeviceSession, Stream(), Selects(), Blueprint(interface, build), replay=False)
    assert said == (
        "output boxes has the shape (-1, 4): the values of the inputs may decide any size but the first, which is the "
        "batch"
    )


@pytest.mark.parametrize(("failure", "raced"), [("", {ENGINE, LAUNCHED}), ("not_capturable", {ENGINE})])
def test_an_engine_is_raced_without_its_cuda_graph_only_if_it_has_one(make, gpu, fail, images, failure, raced):
    paths = speed.BenchmarkPaths(make(), *[Path("nowhere")] * 5)
    fail(failure)
    with contextlib.ExitStack() as opened:
        found = speed._contenders(opened, paths, gpu, REPLAYED, (), {"input": images})
        assert found.keys() == raced


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_a_run_after_a_failure_for_another_shape_is_right(make, gpu, fail, images, inference):
    with open_engine(make(), gpu, inference) as engine:
        wanted = engine.run({"input": images})["logits"]
        fail("wrong_shape")
        with contextlib.suppress(EnginewrightError):
            engine.run({"input": images[:5]})
        fail("")
        assert np.array_equal(engine.run({"input": images})["logits"], wanted)
        assert np.array_equal(engine.run({"input": images[:5]})["logits"], wanted[:5])
        assert bool(engine._session._graph) == inference.cuda_graph


def test_an_output_that_outgrows_its_memory_is_a_sentence(
    coarse_onnx, pair_build, gpu, manifest, tmp_path, monkeypatch
):
    """Its memory is allocated for the largest images, where it should be largest."""
    folder = tmp_path / "coarse"
    build_engine(DescribedGraph("fp32", coarse_onnx, manifest), target_of(gpu, pair_build.tensorrt), pair_build, folder)
    with open_engine(folder, gpu, PLAIN) as engine:
        monkeypatch.setattr(trt.IExecutionContext, "get_tensor_shape", lambda self, name: trt.Dims((2, 8, 90, 90)))
        assert refusal(lambda: engine.run({"image": np.zeros((2, 3, 8, 8), np.float32)})) == (
            "output map would have shape (2, 8, 90, 90), which is more than at the largest sizes of build.profile, "
            "that memory was taken for: set min, opt and max alike there"
        )


def test_plugins_are_registered_before_parsing_and_before_deserializing(
    plugin_onnx, build, gpu, manifest, tmp_path, images, monkeypatch
):
    """Each process registers them itself: an engine is mostly opened in another one than it is built in."""
    monkeypatch.setitem(trt._registry, "plugins", False)
    build_engine(
        DescribedGraph("fp32", plugin_onnx, manifest), target_of(gpu, build.tensorrt), build, tmp_path / "engine"
    )
    monkeypatch.setitem(trt._registry, "plugins", False)
    with open_engine(tmp_path / "engine", gpu, PLAIN) as engine:
        assert np.isfinite(engine.run({"input": images})["logits"]).all()


def test_a_build_that_is_interrupted_ends_though_the_builder_does_not_listen(make, fail, tmp_path, monkeypatch):
    build_apart(monkeypatch)
    fail("slow_build")  # it takes 50 seconds, whatever it is told
    threading.Timer(5, os.kill, [os.getpid(), signal.SIGINT]).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        make()
    assert time.monotonic() - started < 20
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("kind", ["registers itself", "hands out"])
def test_the_plugins_of_users_travel_with_the_engine(make, gpu, tmp_path, images, kind):
    """They are loaded before parsing, and from the engine's folder before deserializing, in whichever process."""
    operator = {"registers itself": "Relu", "hands out": "GlobalAveragePool"}[kind]
    library = plugin_library(tmp_path / "data/own.so", kind, operator)
    folder = make(plugins=(str(library),))
    library.unlink()
    if "ENABLE_PLUGIN_OVERRIDE" in trt.OnnxParserFlag.__members__:  # else only operators that ONNX lacks are taken over
        assert plan_settings(folder)["plugins"] == [operator]
    ctypes.CDLL(None).unsetenv(b"SIMULATED_PLUGINS")  # it would be passed on to the other process
    opening = multiprocessing.get_context("spawn").Process(target=run_once, args=(folder, gpu, images))
    opening.start()
    opening.join()
    assert opening.exitcode == 0
    (folder / "own.so").write_bytes(b"")
    assert "own.so is damaged" in refusal(lambda: open_engine(folder, gpu, PLAIN))


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("needs another library", r"does not load: /.*/own.so: undefined symbol: missing_function"),
        ("hands out nothing", r"is refused by TensorRT: .*No creator returned by getPluginCreators.*"),
    ],
)
def test_a_library_of_plugins_that_does_not_load_is_a_sentence(make, tmp_path, kind, wanted):
    library = plugin_library(tmp_path / "own.so", kind)
    sentence = refusal(lambda: make(plugins=(str(library),)))
    assert re.fullmatch(rf"the plugin library own.so \(build.tensorrt.plugins\) {wanted}", sentence)
    assert not (tmp_path / "engine").exists()


def test_too_little_memory_for_the_context_is_a_sentence(make, gpu, fail):
    folder = make()
    fail("out_of_memory_run")
    sentence = refusal(lambda: open_engine(folder, gpu, PLAIN))
    assert sentence.startswith("TensorRT cannot make the engine ready: ")
    assert sentence.endswith("lower build.profile.batch.max, or end other programs that use the GPU")


def test_too_little_memory_is_a_sentence_wherever_it_ends(make, gpu, monkeypatch):
    """The plan, the context and our own buffers: the first that does not fit is named, and all memory is freed."""
    folder, sentences, opened = make(), [], False
    monkeypatch.setattr("enginewright.engine.gpu.LEAST_MEMORY", 0)
    for size in range(4000, 4_000_000, 3000):
        monkeypatch.setenv("SIMULATED_MEMORY", str(size))
        try:
            open_engine(folder, gpu, PLAIN).__exit__()
            opened = True
            break
        except EnginewrightError as error:
            sentences.append(str(error))
        gc.collect()
        assert not any(cudart.allocated().values())
    assert opened
    assert all("lower build.profile.batch.max, or end other programs" in sentence for sentence in sentences)
    causes = [re.sub(r"(TensorRT cannot \w+|the GPU is out of memory).*", r"\1", sentence) for sentence in sentences]
    assert list(dict.fromkeys(causes)) == ["TensorRT cannot load", "TensorRT cannot make", "the GPU is out of memory"]


def test_layers_are_timed_under_the_names_that_the_engine_has_for_them(make, gpu, images):
    """In the simulation the second layer takes twice as long as the first, and all together what the call takes."""
    folder = make()
    record = EngineRecord.read(folder / "engine.json")
    layers = load_runtime("tensorrt").trace(folder, record.blueprint, REPLAYED, {"input": images[:4]}, calls=5)
    assert [layer.name for layer in layers] == [layer.name for layer in record.layers]
    assert {layer.precision for layer in layers if layer.computes} == {"tf32"}
    first = layers[0].milliseconds
    assert first > 0
    assert [layer.milliseconds / first for layer in layers] == pytest.approx(range(1, len(layers) + 1), rel=0.01)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("deserialize_none", "TensorRT cannot load "),
        ("out_of_memory_run", "TensorRT cannot make the engine ready: "),
        ("execute_false", "TensorRT cannot run the engine: "),
        ("wrong_shape", "output logits would have shape"),
    ],
)
def test_timing_layers_that_fails_is_a_sentence(make, images, fail, failure, words):
    folder = make()
    blueprint = EngineRecord.read(folder / "engine.json").blueprint
    fail(failure)
    runtime = load_runtime("tensorrt")
    assert words in refusal(lambda: runtime.trace(folder, blueprint, PLAIN, {"input": images[:4]}, calls=2))


def test_a_trace_is_empty_where_tensorrt_reports_no_times(make, gpu, samples, monkeypatch):
    folder = make()
    monkeypatch.setattr(trt.IExecutionContext, "enqueue_emits_profile", False)
    assert trace_engine(folder, gpu, PLAIN, samples).layers == ()


def test_an_element_that_the_engine_does_not_write_is_nan(make, gpu, fail, images):
    with open_engine(make(), gpu, PLAIN) as engine:
        assert np.isfinite(engine.run({"input": images})["logits"]).all()
        fail("unwritten_output")
        logits = engine.run({"input": images})["logits"]
        assert np.isnan(logits.flat[-1])
        assert np.isfinite(logits.flat[:-1]).all()


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_each_call_takes_the_profile_that_is_tuned_for_the_nearest_sizes(
    tiny_onnx, gpu, build, manifest, tmp_path, images, monkeypatch, inference
):
    sizes = [(2, 2, 3), (4, 8, 8)]  # beside 2 to 8, tuned for 4
    ranges = tuple({"batch": Range(min=low, opt=opt, max=high)} for low, opt, high in sizes)
    several, folder, chosen = build.model_copy(update={"profiles": ranges}), tmp_path / "engine", []
    record = build_engine(
        DescribedGraph("fp32", tiny_onnx, manifest), target_of(gpu, several.tensorrt), several, folder
    )
    assert [layer.name for layer in record.tuned_layers] == 2 * [layer.name for layer in record.layers]
    assert {layer.profile for layer in record.tuned_layers} == {1, 2}
    assert re.search(r"in profile 2 +3 tf32", describe_engine(folder))
    change = trt.IExecutionContext.set_optimization_profile_async
    monkeypatch.setattr(
        trt.IExecutionContext,
        "set_optimization_profile_async",
        lambda self, number, stream: (chosen.append(number), change(self, number, stream))[1],
    )
    graph = open_as_written(tiny_onnx)
    with open_engine(folder, gpu, inference) as engine:
        for batch in (2, 3, 5, 2, 7, 8, 4):  # 3 and 6 are as near to one as to the other: the first one counts
            wanted = run_graph(graph, {"input": images[:batch]})["logits"]
            assert np.array_equal(engine.run({"input": images[:batch]})["logits"], wanted), f"at batch {batch}"
    assert chosen == [2, 1, 0, 1, 2, 0]  # the first one for the memory that the largest sizes take


def test_a_profile_that_tensorrt_refuses_is_a_sentence(tiny_onnx, gpu, build, manifest, tmp_path, images, fail):
    several = build.model_copy(update={"profiles": ({"batch": Range(min=2, opt=2, max=2)},)})
    build_engine(
        DescribedGraph("fp32", tiny_onnx, manifest), target_of(gpu, several.tensorrt), several, tmp_path / "engine"
    )
    with open_engine(tmp_path / "engine", gpu, REPLAYED) as engine:
        fail("profile_refused")
        assert refusal(lambda: engine.run({"input": images[:2]})).startswith(
            "TensorRT refuses optimization profile 1 of the engine: IExecutionContext::setOptimizationProfileAsync"
        )
        fail("")
        assert engine.run({"input": images[:2]})["logits"].shape == (2, 16)


def test_a_shape_outside_the_profile_is_refused_by_tensorrt_as_well(make, images):
    (session,) = load(make())
    try:
        sentence = refusal(lambda: session.run({"input": images[:1]}))
        assert "TensorRT refuses shape (1, 3, 8, 8) for input input: " in sentence
    finally:
        session.close()


def test_no_gpu_and_an_old_driver_are_different_sentences(fail):
    sentences = {
        "no_driver": "this machine shows no NVIDIA GPU",
        "no_device": "CUDA sees no NVIDIA GPU",
        "old_driver": "the NVIDIA driver goes up to CUDA 12.8, and CUDA 13 is needed",
    }
    for failure, why in sentences.items():
        fail(failure)
        assert f"runtime: tensorrt needs an NVIDIA GPU, but {why}" in refusal(lambda: describe_machine("tensorrt"))


def test_a_container_without_nvidias_management_library_has_a_gpu_all_the_same(make, gpu, fail, images):
    fail("no_nvml")
    here = describe_machine("auto")
    assert here == gpu.model_copy(update={"driver": "unknown"})
    with open_engine(make(), here, PLAIN) as engine, GpuSampler() as sampler:
        assert np.isfinite(engine.run({"input": images})["logits"]).all()
    assert (sampler.conditions(), process_megabytes()) == (None, None)


def test_a_process_that_the_driver_hides_has_no_known_memory(fail):
    assert process_megabytes() is not None
    fail("hidden_processes")
    assert process_megabytes() is None


def test_an_old_tensorrt_is_a_sentence(monkeypatch):
    monkeypatch.setattr("tensorrt.__version__", "8.6.1")
    assert "TensorRT 8.6.1 is too old, Enginewright is written for 10.3 and newer: pip install" in refusal(
        lambda: describe_machine("tensorrt")
    )


def test_timings_are_kept_for_the_next_build(make, cache_folder, capfd):
    make("first")
    (cache,) = cache_folder.glob("*.timings")
    assert cache.name.startswith("Simulated-GPU_8.9_590.10_tensorrt-")
    kept = cache.read_bytes()
    make("second")
    assert cache.read_bytes() == kept
    assert not capfd.readouterr().err


def test_no_timings_are_kept_if_none_are_wanted(make, cache_folder):
    make(timing_cache=False)
    assert not cache_folder.exists()


@pytest.mark.parametrize("content", [b"garbage", b"timings{"], ids=["garbage", "truncated"])
def test_a_damaged_timing_cache_is_set_aside_and_begun_anew(make, cache_folder, capfd, content):
    make("first")
    (cache,) = cache_folder.glob("*.timings")
    whole = cache.read_bytes()
    cache.write_bytes(content)
    make("second")
    assert cache.read_bytes() == whole
    assert cache.with_suffix(".damaged").read_bytes() == content
    assert "is damaged: moved to" in capfd.readouterr().err


def test_builds_at_the_same_time_lose_none_of_each_others_timings(make, cache_folder):
    """Both have read the cache before either writes it."""
    side_by_side = multiprocessing.get_context("fork")
    both_have_read = side_by_side.Barrier(2)
    build = trt.Builder.build_serialized_network

    def wait_and_build(self, network, config):
        both_have_read.wait(timeout=30)
        return build(self, network, config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trt.Builder, "build_serialized_network", wait_and_build)
        workers = [
            side_by_side.Process(target=make, args=(f"c{level}",), kwargs={"optimization_level": level})
            for level in (1, 5)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
    levels = {name.rpartition(" ")[2] for name in timings(cache_folder)}
    assert levels == {"1", "5"}


def test_a_cache_that_tensorrt_refuses_is_begun_anew_with_a_warning(make, cache_folder, fail, capfd):
    make("first", optimization_level=1)
    fail("cache_refused")
    make("second", optimization_level=5)
    assert "TensorRT refuses the timings of earlier builds" in capfd.readouterr().err
    assert any(name.endswith("level 5") for name in timings(cache_folder))


@pytest.mark.parametrize("way", ["a file", "read-only", "no home"])
def test_a_cache_that_cannot_be_kept_costs_no_engine(make, monkeypatch, tmp_path, capfd, way):
    (tmp_path / "cache").write_text("")
    if way == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])  # a user without an entry, as in some containers
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache") if way == "a file" else "/proc/no/such")
    assert (make() / "engine.plan").exists()
    assert "timings are not read (build.tensorrt.timing_cache): " in capfd.readouterr().err


def timings(cache_folder):
    (cache,) = cache_folder.glob("*.timings")
    return json.loads(read_timing_cache(cache).removeprefix(b"timings"))


def plan_settings(folder):
    """Return the settings that reached the simulated builder."""
    plan = (folder / "engine.plan").read_bytes()
    return json.loads(plan[8 : 8 + int.from_bytes(plan[4:8], "little")])


def test_every_choice_reaches_the_builder(make):
    tiling = "full" if HAS_TILING else "none"
    settings = plan_settings(make("plain"))
    assert (settings["optimization_level"], settings["limits"], settings["strongly_typed"]) == (3, {}, True)
    assert settings["detailed"]
    assert settings["avg_timing_iterations"] == 8
    assert (settings["tiling_optimization_level"], settings["max_aux_streams"]) == ("NONE", -1)
    assert (settings["hardware_compatibility"], settings["version_compatible"]) == ("NONE", False)
    settings = plan_settings(
        make(
            "chosen",
            optimization_level=1,
            avg_timing_iterations=2,
            tiling_optimization_level=tiling,
            max_aux_streams=0,
            workspace_mb=64,
            hardware_compatibility="ampere_plus",
            version_compatible=True,
        )
    )
    assert (settings["optimization_level"], settings["limits"]) == (1, {"WORKSPACE": 64 << 20})
    assert (settings["hardware_compatibility"], settings["version_compatible"]) == ("AMPERE_PLUS", True)
    assert settings["avg_timing_iterations"] == 2
    assert (settings["tiling_optimization_level"], settings["max_aux_streams"]) == (tiling.upper(), 0)


def answers(folder, gpu, images, inference=PLAIN):
    with open_engine(folder, gpu, inference) as engine:
        return engine.run({"input": images})["logits"]


@pytest.mark.parametrize(("refit", "inference"), [(False, PLAIN), (True, REPLAYED)], ids=["identical", "any"])
def test_a_stripped_engine_takes_its_weights_from_its_graph(make, gpu, images, tiny_onnx, fail, refit, inference):
    fail("few_kernels")
    whole, folder = make("whole"), make(weights="stripped", refit=refit)
    record, full = (EngineRecord.read(each / "engine.json") for each in (folder, whole))
    assert plan_settings(folder)["refit"] == ("REFIT" if refit else "REFIT_IDENTICAL")
    assert (record.bytes < full.bytes, record.onnx_bytes) == (True, tiny_onnx.stat().st_size)
    assert record.weights == {"model.onnx": sha256(tiny_onnx)}
    assert "model.onnx" not in record.files
    assert (" of weights" in record.size_in_words, " of weights" in full.size_in_words) == (True, False)
    assert record.executed == full.executed
    assert np.array_equal(answers(folder, gpu, images, inference), answers(whole, gpu, images, inference))
    beside = folder.with_name("bundle") / "engine"
    folder.rename(beside.parent)
    beside.mkdir()
    for name in ("engine.plan", "engine.json"):  # as in a bundle, where the graph is beside the engine's folder
        (beside.parent / name).rename(beside / name)
    assert np.array_equal(answers(beside, gpu, images), answers(whole, gpu, images))


@pytest.mark.parametrize("way", ["missing", "other"])
def test_a_stripped_engine_without_its_weights_says_what_is_missing(make, gpu, tiny_onnx, fail, way):
    fail("few_kernels")
    folder = make(weights="stripped")
    graph = folder / "model.onnx"
    graph.unlink() if way == "missing" else graph.write_bytes(tiny_onnx.read_bytes() + b" ")
    assert describe_engine(folder)
    sentence = refusal(lambda: open_engine(folder, gpu, PLAIN))
    state = "is missing" if way == "missing" else "has another hash than engine.json says"
    assert f"{graph}, which has them, {state}: put the file there that has sha256 {sha256(tiny_onnx)[:12]}" in sentence


def test_weights_that_do_not_arrive_are_a_sentence(make, gpu, fail):
    fail("few_kernels")
    folder = make(weights="stripped")
    fail("not_refitted")
    assert refusal(lambda: open_engine(folder, gpu, PLAIN)) == (
        f"TensorRT cannot take the weights of {folder / 'model.onnx'}: IRefitter::refitCudaEngine: Error Code 4: API "
        "Usage Error (missing weights)"
    )


@pytest.mark.parametrize("mb", ["auto", "all", 0, 1_000_000])
def test_weights_are_streamed_where_they_do_not_fit(make, gpu, images, monkeypatch, capfd, mb):
    """The memory holds the buffers and half of the weights."""
    whole, folder = make("whole"), make(streaming=True)
    wanted, inference = answers(whole, gpu, images), PLAIN.model_copy(update={"weights_on_gpu_mb": mb})
    capfd.readouterr()
    assert np.array_equal(answers(folder, gpu, images, inference), wanted)
    assert ("of weights stay on the GPU" in capfd.readouterr().err) == (mb == 0)
    monkeypatch.setenv("SIMULATED_MEMORY", "50000")
    monkeypatch.setattr("enginewright.engine.gpu.LEAST_MEMORY", 0)
    assert "out of memory" in refusal(lambda: open_engine(whole, gpu, PLAIN))
    gc.collect()
    if mb in ("auto", 0):
        assert np.array_equal(answers(folder, gpu, images, inference), wanted)
        assert "the others are streamed (inference.weights_on_gpu_mb)" in capfd.readouterr().err
    else:
        assert "out of memory" in refusal(lambda: open_engine(folder, gpu, inference))


def test_a_budget_that_tensorrt_refuses_is_a_sentence(make, gpu, fail):
    folder = make(streaming=True)
    fail("budget_refused")
    sentence = refusal(lambda: open_engine(folder, gpu, PLAIN.model_copy(update={"weights_on_gpu_mb": 0})))
    assert sentence.startswith("TensorRT refuses inference.weights_on_gpu_mb 0: ")


@pytest.fixture
def tuned_onnx(tiny_onnx, tmp_path):
    """The tiny graph with other weights."""
    model = load_graph(tiny_onnx)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 1.1 + 0.01, tensor.name))
    save_graph(model, tmp_path / "tuned.onnx")
    return tmp_path / "tuned.onnx"


@pytest.fixture
def refittable(make, images, tiny_onnx):
    def made(**options):
        folder = make(**{"refit": True} | options)
        write_comparison(EngineRecord.read(folder / "engine.json"), tiny_onnx, [{"input": images}], folder)
        return folder

    return made


@pytest.mark.parametrize("weights", ["inside", "stripped"])
def test_other_weights_are_put_into_an_engine(refittable, gpu, images, tuned_onnx, tmp_path, fail, weights):
    fail("few_kernels")
    folder, out = refittable(weights=weights), tmp_path / "deeper" / "tuned"
    out.parent.mkdir()
    assert "cosine 1.000000" in refit_engine(folder, tuned_onnx, out)
    meant = run_graph(open_as_written(tuned_onnx), {"input": images})["logits"]
    assert np.array_equal(answers(out, gpu, images), meant)
    assert not np.allclose(answers(folder, gpu, images), meant)
    old, new = (EngineRecord.read(each / "engine.json") for each in (folder, out))
    assert (new.onnx_sha256, new.bytes, new.graph_sha256) == (sha256(tuned_onnx), old.bytes, old.graph_sha256)
    assert "--onnx=../../tuned.onnx" in (out / "reproduce.sh").read_text()
    assert (out / "polygraphy.sh").exists() == (weights == "inside")
    assert "cosine 1.000000" in refit_engine(out, tuned_onnx, tmp_path / "again")


def test_an_engine_that_loses_a_bias_when_it_is_refitted_is_refused(refittable, tuned_onnx, tmp_path, fail):
    folder = refittable()
    fail("bias_lost")
    sentence = refusal(lambda: refit_engine(folder, tuned_onnx, tmp_path / "out"))
    assert "does not compute what that graph means: its cosine is 0.9" in sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "change", "words"),
    [
        ({"refit": False}, None, "takes no other weights: set build.tensorrt.refit to true"),
        ({}, "node", "is not the graph of .* with other weights"),
        ({}, "shape", "is not the graph of .* with other weights"),
        ({}, "out", "exists already: give another folder with --out"),
        ({}, "inputs", "inputs.json is missing, whose samples show whether weights arrive"),
    ],
)
def test_weights_that_cannot_be_put_in_are_a_sentence(refittable, tuned_onnx, tmp_path, options, change, words):
    folder, model = refittable(**options), load_graph(tuned_onnx)
    if change == "node":
        model.graph.node[1].op_type = "Sigmoid"
    if change == "shape":
        weights = next(each for each in model.graph.initializer if each.name == "w3")
        weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights)[:8], "w3"))
    if change == "out":
        (tmp_path / "out").mkdir()
    if change == "inputs":
        (folder / "inputs.json").unlink()
    onnx.save(model, tuned_onnx)
    assert re.search(words, refusal(lambda: refit_engine(folder, tuned_onnx, tmp_path / "out")))


@pytest.mark.skipif(not HAS_TILING, reason="came with TensorRT 10.8")
def test_an_option_that_tensorrt_refuses_is_a_sentence(make, fail):
    fail("tiling_refused")
    make("without")
    assert refusal(lambda: make(tiling_optimization_level="fast")) == (
        f"TensorRT {trt.__version__} refuses build.tensorrt.tiling_optimization_level: Error Code 3: API Usage Error "
        "(Tiling is not supported on this GPU.)"
    )


@pytest.mark.skipif(HAS_TILING, reason="TensorRT has them since 10.8 and 10.9")
@pytest.mark.parametrize(
    ("option", "wanted", "others"),
    [
        ("tiling_optimization_level", "fast", "none"),
        ("hardware_compatibility", "same_compute_capability", "none or ampere_plus"),
    ],
)
def test_an_option_that_this_version_does_not_have_is_a_sentence(make, tmp_path, option, wanted, others):
    assert refusal(lambda: make(**{option: wanted})) == (
        f"TensorRT {trt.__version__} does not have build.tensorrt.{option}: {wanted}: set it to {others}, or install a "
        "later version: pip install -e '.[tensorrt]'"
    )
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("operator", [FP4_QUANTIZE, MXFP8_QUANTIZE])
@pytest.mark.skipif(hasattr(trt.DataType, "FP4"), reason="TensorRT has it since 10.8")
def test_a_precision_that_this_version_does_not_have_is_a_sentence(tiny_onnx, gpu, build, manifest, tmp_path, operator):
    model = load_graph(tiny_onnx)
    model.graph.node.insert(0, onnx.helper.make_node(operator, ["input"], ["x", "y"], "rounded", domain=DOMAIN))
    model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    onnx.save(model, tmp_path / "model.onnx")
    target = target_of(gpu, build.tensorrt)
    sentence = refusal(
        lambda: build_engine(
            DescribedGraph("nvfp4", tmp_path / "model.onnx", manifest), target, build, tmp_path / "engine"
        )
    )
    assert f"node rounded ({operator})" in sentence
    assert sentence.endswith("install a later one, or delete its section of `precisions`")


def test_a_missing_lean_runtime_is_a_sentence(make, fail):
    fail("no_lean_runtime")
    make("without")
    sentence = refusal(lambda: make(version_compatible=True))
    assert "Unable to load library: libnvinfer_lean.so." in sentence
    assert sentence.endswith("or set build.tensorrt.version_compatible to false")


def test_graphs_are_converted_alike_with_and_without_tensorrt(tiny_onnx, monkeypatch):
    """ModelOpt would ask TensorRT, if it found one."""
    monkeypatch.setattr("tensorrt.Builder", lambda log: pytest.fail("TensorRT was asked"))
    tensors = ["input", *(name for node in load_graph(tiny_onnx).graph.node for name in node.output)]
    keep = Keep(op_types=(), nodes=())
    quantized = quantize(tiny_onnx, "int8", dict.fromkeys(tensors, 4.0), keep, rest="fp16")
    assert count_nodes(quantized)["QuantizeLinear"] > 0
    assert count_nodes(cast(tiny_onnx, "fp16", keep))["Cast"] > 0


@pytest.mark.parametrize("level", ["none", "same_compute_capability", "ampere_plus"])
def test_compatibility_reaches_tensorrt_and_is_recorded(make, gpu, images, level):
    if not hasattr(trt.HardwareCompatibilityLevel, level.upper()):
        pytest.skip("came with TensorRT 10.9")
    folder = make(hardware_compatibility=level, version_compatible=True)
    target = EngineRecord.read(folder / "engine.json").target
    assert target.capabilities == (("8.0+",) if level == "ampere_plus" else ("8.9",))
    assert (target.device_name is None) == (level != "none")
    assert target.or_newer
    with open_engine(folder, gpu, PLAIN) as engine:
        assert np.isfinite(engine.run({"input": images})["logits"]).all()


def test_a_version_compatible_engine_of_an_earlier_tensorrt_10_runs(make, gpu, images):
    """Also on 11, which NVIDIA's support matrix allows."""
    folder = make(version_compatible=True)
    plan, record = folder / "engine.plan", EngineRecord.read(folder / "engine.json")
    plan.write_bytes(with_version(plan.read_bytes(), "10.0.1.6"))
    target = record.target.model_copy(update={"runtime_version": "10.0.1.6"})
    files = {plan.name: sha256(plan)}
    record.model_copy(update={"target": target, "files": files}).write(folder / "engine.json")
    with open_engine(folder, gpu, REPLAYED) as engine:
        assert np.isfinite(engine.run({"input": images})["logits"]).all()


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("baseline", ["torch_tensorrt", "torch_tensorrt+channels_last+fp16"])
def test_torch_tensorrt_compiles_each_batch_size_with_the_arithmetic_of_the_engine(images, baseline, tf32):
    require_possible((baseline,), "cuda")
    torch._dynamo.reset()
    compiled, model = sys.modules["torch_tensorrt"].compiled, torch.nn.Conv2d(3, 4, 3).eval()
    compiled.clear()
    for batch in (2, 8, 5):
        call = pytorch_contender(model, baseline, "cuda", tf32, {"input": images[:batch]})
        assert call() > 0
    assert [settings["disable_tf32"] for settings in compiled] == [not tf32] * 3


def test_what_torch_tensorrt_cannot_build_is_not_timed_as_its_own(images, fail):
    fail("not_converted")
    require_possible(("torch_tensorrt",), "cuda")
    torch._dynamo.reset()
    model = torch.nn.Conv2d(3, 4, 3).eval()
    with pytest.raises(EnginewrightError, match=r"the model fails as torch_tensorrt on input .* failed in TensorRT"):
        pytorch_contender(model, "torch_tensorrt", "cuda", True, {"input": images})


def test_torch_tensorrt_for_another_pytorch_is_a_sentence(fail, monkeypatch):
    fail("other_torch")
    for name in ("torch_tensorrt", "simulated.torch_tensorrt"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert refusal(lambda: require_possible(("torch_tensorrt",), "cuda")) == (
        "benchmark.baselines: Torch-TensorRT cannot be loaded (libtorchtrt.so: undefined symbol: "
        "_ZN3c1015report_overflowEPKc): `pip install torch-tensorrt==2.14.0` puts PyTorch 2.14 and TensorRT 11.1 "
        "in place of yours"
    )

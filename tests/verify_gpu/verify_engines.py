"""What engines compute on a GPU is what their graphs mean."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import numpy_helper
from support.gpu import KEEP, LIMITS, PLAIN, REPLAYED, is_for, meant, relative_error
from support.pass_checks import model_of_text

from enginewright.bundle.facts import Passed, render
from enginewright.cli.commands.refit import refit_engine
from enginewright.core.errors import CompilerError
from enginewright.core.facts import PRECISIONS
from enginewright.core.params.build import Range
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine, open_engines
from enginewright.engine.machine import target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes.onnxruntime import LAYOUTS, optimize, try_in_own_process
from enginewright.engine.tools import write_comparison
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.data_apart import in_memory
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.precision.blocks import write_blocks
from enginewright.precision.cast import cast

BLOCKS = [name for name, facts in PRECISIONS.items() if facts.block]


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
    described, target = DescribedGraph(in_blocks, onnx, manifest), target_of(machine, exact.tensorrt)
    try:
        build_engine(described, target, exact, tmp_path / "engine")
    except CompilerError as error:
        if "Block quantization is supported only for" not in str(error):
            raise
        pytest.skip(f"TensorRT {machine.runtime_version} does not have {in_blocks}: {error}")
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
    machine, exact, build_once, tmp_path, inference
):
    """ONNX Runtime compiles their kernels for a shape, and lost them at the next while CUDA graphs still named them."""
    random = np.random.default_rng(5)
    weights = {"w": random.normal(0, 0.3, (32, 1, 5, 5)).astype(np.float32)}
    conv = "Conv <group = 32, pads = [2, 2, 2, 2], strides = [2, 2]> (input, w)"
    head = "h = HardSwish (c) logits = GlobalAveragePool (h)"
    text = f"g (float[batch,32,56,56] input) => (float[batch,32,1,1] logits) {{ c = {conv} {head} }}"
    save_graph(model_of_text(text, weights), tmp_path / "fp32.onnx")
    save_graph(cast(tmp_path / "fp32.onnx", "fp16", KEEP), tmp_path / "fp16.onnx")
    folder = build_once("depthwise", "fp16", tmp_path / "fp16.onnx", exact)
    with open_engine(folder, machine, inference) as engine:
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
    settings = Passed(folder, graphs["fp16"], record, None, machine, Path(), ()).settings
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


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_requests_side_by_side_get_the_answers_to_their_own_questions(engines, machine, images, inference):
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


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_several_inputs_outputs_and_sizes_are_computed_as_the_graph_means(
    pair_onnx, pair_build, pair_feeds, machine, build_once, inference
):
    build = pair_build.model_copy(update={"tf32": False})
    folder = build_once("pair", "fp32", pair_onnx, build)
    session = open_as_written(pair_onnx)
    with open_engine(folder, machine, inference) as engine:
        for sizes in ((2, 8, 8), (4, 16, 12), (1, 13, 9), (2, 8, 8)):  # a graph serves only its own sizes
            feeds = pair_feeds(*sizes)
            wanted, got = run_graph(session, feeds), engine.run(feeds)
            assert got.keys() == wanted.keys()
            for name, values in wanted.items():
                assert relative_error(values, got[name]) < LIMITS["fp32"], f"{name} at {sizes}"


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_an_engine_with_several_profiles_computes_the_same_in_each(
    pair_onnx, pair_build, pair_feeds, machine, build_once, inference
):
    """Calls go back and forth between profiles, which replays must follow."""
    small, large = ({"batch": Range(min=size, opt=size, max=size)} for size in (1, 4))
    build = pair_build.model_copy(update={"tf32": False, "profiles": (small, large)})
    folder = build_once("pair with profiles", "fp32", pair_onnx, build)
    record = EngineRecord.read(folder / "engine.json")
    print({number: sum(one.profile == number for one in record.tuned_layers) for number in (1, 2)}, "layers")
    with open_engine(folder, machine, inference) as engine:
        for sizes in ((1, 8, 8), (4, 16, 12), (2, 8, 8), (1, 13, 9), (1, 8, 8), (3, 8, 8)):
            feeds = pair_feeds(*sizes)
            wanted, got = run_graph(open_as_written(pair_onnx), feeds), engine.run(feeds)
            for name, values in wanted.items():
                assert relative_error(values, got[name]) < LIMITS["fp32"], f"{name} at {sizes}"


def test_a_stripped_engine_computes_what_its_graph_means(built_with, engines, graphs, machine, images, precision):
    whole = EngineRecord.read(engines / precision / "engine.json")
    record, folder = built_with("stripped", precision, weights="stripped")
    print(f"{precision}: {record.bytes} of {whole.bytes} bytes")
    assert record.bytes < whole.bytes
    assert record.weights
    with open_engine(folder, machine, REPLAYED) as engine:
        got = engine.run({"input": images})["logits"]
    assert relative_error(meant(graphs[precision], images), got) < LIMITS[precision]


def test_barriers_change_no_answer(engines, graphs, parted, machine, exact, images, precision, build_once):
    folder = build_once(f"apart-{precision}", precision, parted[precision], exact)
    counts = [len(EngineRecord.read(each / "engine.json").layers) for each in (engines / precision, folder)]
    print(f"{precision}: {counts[0]} layers, and {counts[1]} with barriers")
    with open_engine(folder, machine, REPLAYED) as engine:
        got = engine.run({"input": images})["logits"]
    assert relative_error(meant(graphs[precision], images), got) < LIMITS[precision]


def test_a_plan_of_few_weights_keeps_them(tiny_onnx, machine, exact, manifest, tmp_path):
    if machine.runtime != "tensorrt":
        pytest.skip(f"{machine.runtime} has no such engines")
    options = exact.tensorrt.model_copy(update={"weights": "stripped"})
    build = exact.model_copy(update={"tensorrt": options})
    record = build_engine(
        DescribedGraph("fp32", tiny_onnx, manifest), target_of(machine, options), build, tmp_path / "engine"
    )
    print(record.remark)
    assert "it keeps its weights" in record.remark
    assert (record.build.tensorrt.weights, record.weights) == ("inside", {})
    open_engine(tmp_path / "engine", machine, PLAIN).close()


@pytest.mark.parametrize("weights", ["inside", "stripped"])
def test_other_weights_can_be_put_into_an_engine(built_with, graphs, machine, images, precision, tmp_path, weights):
    """NVIDIA knows of versions that lose the bias of a matrix product here: `enginewright refit` refuses then."""
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
    coarse_onnx, pair_build, pair_feeds, machine, build_once, inference
):
    if machine.runtime == "onnxruntime":
        pytest.skip("ONNX Runtime on a GPU refuses it")
    build = pair_build.model_copy(update={"tf32": False})
    folder = build_once("coarse", "fp32", coarse_onnx, build)
    with open_engine(folder, machine, inference) as engine:
        for sizes in ((2, 8, 8), (4, 16, 12), (1, 13, 9), (2, 8, 8)):
            feeds = {"image": pair_feeds(*sizes)["image"]}
            wanted, got = run_graph(open_as_written(coarse_onnx), feeds)["map"], engine.run(feeds)["map"]
            assert got.shape == wanted.shape
            assert relative_error(wanted, got) < LIMITS["fp32"], f"at {sizes}"


@pytest.mark.parametrize("inference", [PLAIN, REPLAYED], ids=["plain", "replayed"])
def test_the_size_of_an_output_may_follow_from_values(
    chosen_onnx, chosen_feeds, machine, exact, build_once, inference, capfd
):
    if machine.runtime == "onnxruntime":
        pytest.skip("ONNX Runtime on a GPU refuses it")
    folder = build_once("chosen", "fp32", chosen_onnx, exact)
    with ExitStack() as opened:
        engines = [opened.enter_context(one) for one in open_engines(folder, machine, inference, 2)]
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
def test_the_values_of_an_input_may_be_sizes(sized_onnx, sized_build, machine, build_once, images, inference):
    """Each call has another size than the last one, of another profile, or only other images."""
    if machine.runtime == "onnxruntime":
        pytest.skip("ONNX Runtime on a GPU refuses it")
    large = {"rows": Range(min=12, opt=16, max=16), "columns": Range(min=4, opt=16, max=16)}
    build = sized_build.model_copy(update={"profiles": (large,), "tf32": False})
    folder = build_once("sized", "fp32", sized_onnx, build)
    with open_engine(folder, machine, inference) as engine:
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


def test_tf32_is_used_only_if_it_is_allowed(graphs, engines, machine, build, manifest, images, tmp_path):
    assert "tf32" not in EngineRecord.read(engines / "fp32" / "engine.json").executed
    build_engine(
        DescribedGraph("fp32", graphs["fp32"], manifest), target_of(machine, build.tensorrt), build, tmp_path / "tf32"
    )
    with open_engine(tmp_path / "tf32", machine, PLAIN) as engine:
        got = engine.run({"input": images})["logits"]
    assert relative_error(meant(graphs["fp32"], images), got) < 5e-3

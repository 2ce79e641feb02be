import inspect
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.errors import error_of

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import target_of
from enginewright.engine.record import EngineRecord, read_engine, require_made_of
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.engine.runtimes import onnxruntime as onnxruntime_module
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.read_interface import read_blueprint

BLOBS = {"openvino": "engine.blob", "onnxruntime": "engine.onnx"}


@pytest.fixture(scope="module", params=BLOBS)
def machine(request):
    return describe_machine(request.param)


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built, tmp_path / "fp32")


@pytest.fixture
def blob(copy, machine):
    return copy / BLOBS[machine.runtime]


@pytest.fixture
def engine(built, machine, inference):
    with open_engine(built, machine, inference) as opened:
        yield opened


@pytest.fixture
def never_loaded(monkeypatch, machine):
    """Make the test fail if anything is deserialized."""
    runtime = load_runtime(machine.runtime)
    monkeypatch.setattr(runtime, "load", lambda *arguments: pytest.fail("the engine was deserialized"))


def test_the_record_holds_what_inference_needs(built, tiny_onnx, machine, build, manifest):
    record = EngineRecord.read(built / "engine.json")
    blob = BLOBS[machine.runtime]
    assert sorted(path.name for path in built.iterdir()) == sorted([blob, "engine.json"])
    assert record.files == {blob: sha256(built / blob)}
    assert record.bytes == (built / blob).stat().st_size
    assert (record.onnx_sha256, record.onnx_bytes) == (sha256(tiny_onnx), tiny_onnx.stat().st_size)
    assert (record.target, record.build, record.precision) == (target_of(machine, build.tensorrt), build, "fp32")
    assert record.profile == build.profile
    assert (record.preprocessing, record.class_names) == (manifest.preprocessing, manifest.class_names)
    assert [(spec.name, spec.dtype, spec.shape) for spec in record.interface.inputs] == [
        ("input", "float32", ("batch", 3, 8, 8))
    ]
    assert [(spec.name, spec.dtype, spec.shape) for spec in record.interface.outputs] == [
        ("logits", "float32", ("batch", 16))
    ]
    assert record.build_seconds > 0


def test_the_layers_that_carry_the_arithmetic_run_as_asked(built):
    record = EngineRecord.read(built / "engine.json")
    assert record.executed == {"fp32": 3}  # two convolutions and the classifier
    assert record.share_as_asked == 1


@pytest.mark.parametrize("batch", [2, 3, 8], ids=["smallest", "odd", "largest"])
def test_an_engine_computes_what_onnx_runtime_computes(engine, tiny_onnx, samples, batch):
    images = samples.cycled(batch)["input"]
    (wanted,) = onnxruntime.InferenceSession(tiny_onnx, providers=["CPUExecutionProvider"]).run(None, {"input": images})
    got = engine.run({"input": images})
    assert got.keys() == {"logits"}
    assert got["logits"] == pytest.approx(wanted, abs=1e-4)


def test_images_need_not_lie_contiguous_in_memory(engine, samples):
    images = samples.cycled(8)["input"]
    sliced = np.repeat(images, 2, axis=0)[::2]
    assert np.array_equal(engine.run({"input": sliced})["logits"], engine.run({"input": images})["logits"])


def test_a_result_is_not_overwritten_by_the_next(engine, samples):
    first = engine.run(samples.cycled(4))["logits"]
    before = first.copy()
    engine.run(samples.read_at(np.arange(4, 8)))
    assert np.array_equal(first, before)


def left_by(call):
    """Return what a bound call computed: it leaves its result with the runtime, since a timing does not need it."""
    held = inspect.getclosurevars(call).nonlocals
    if "binding" in held:  # ONNX Runtime's
        return held["binding"].copy_outputs_to_cpu()[0]
    return held["request"].get_output_tensor(0).data.copy()


def test_a_bound_call_computes_what_run_computes(built, machine, inference, samples):
    images = samples.cycled(5)["input"]
    with open_engine(built, machine, inference) as engine:
        call = engine.bind({"input": images})
        results = [call() or left_by(call) for _ in range(2)]
        wanted = engine.run({"input": images})["logits"]
    for result in results:
        assert result == pytest.approx(wanted, abs=1e-6)


def test_another_call_leaves_bound_images_as_they_are(built, machine, inference, samples):
    """OpenVINO would write the images of the next request over those of the last one: see `_place`."""
    images, others = samples.cycled(4), samples.read_at(np.arange(4, 8))
    before = images["input"].copy()
    others["input"].setflags(write=False)
    with open_engine(built, machine, inference) as engine:
        engine.bind(images)()
        engine.run(others)
    assert np.array_equal(images["input"], before)


def test_a_bound_call_can_be_repeated(built, machine, inference, samples):
    with open_engine(built, machine, inference) as engine:
        call = engine.bind(samples.cycled(8))
        wanted = engine.run(samples.cycled(8))["logits"]
        for _ in range(3):
            call()
        assert np.array_equal(engine.run(samples.cycled(8))["logits"], wanted)


def change_a_byte(folder, blob):
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.write_bytes(content)


def drop_a_field(folder, blob):
    record = json.loads((folder / "engine.json").read_text())
    del record["files"]
    (folder / "engine.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (change_a_byte, r"{blob} is damaged: its hash differs .*dvc repro"),
        (lambda folder, blob: blob.write_bytes(blob.read_bytes()[:-1]), "{blob} is damaged"),
        (lambda folder, blob: blob.unlink(), "{blob} is missing.*dvc checkout"),
        (lambda folder, blob: (folder / "engine.json").unlink(), "{folder} is not an engine's folder.*dvc repro"),
        (drop_a_field, r"engine\.json is damaged or of another version of Enginewright \(files"),
    ],
    ids=["changed byte", "truncated", "no blob", "no record", "broken record"],
)
def test_a_damaged_engine_is_refused_before_it_is_deserialized(
    copy, blob, machine, inference, never_loaded, damage, sentence, monkeypatch
):
    monkeypatch.chdir(copy.parent)  # where no engine of the same name could be meant
    damage(copy, blob)
    with pytest.raises(EnginewrightError, match=sentence.format(blob=blob.name, folder=copy.name)):
        open_engine(copy, machine, inference)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("runtime_version", "2020.1"),
        ("device_name", "another processor"),
        ("capability", "sse2"),
        ("cores", 640),
        ("operating_system", "Plan9"),
    ],
)
def test_an_engine_built_for_another_machine_is_refused(built, machine, inference, never_loaded, field, value):
    here = machine.model_copy(update={field: value})
    there = getattr(machine, field)
    wanted = f"{field} {there!r} there and {value!r} here"
    if field == "capability":
        wanted = f"instruction sets {there} there and {value} here"
    with pytest.raises(EnginewrightError) as caught:
        open_engine(built, here, inference)
    assert "was built for another machine: " in str(caught.value)
    assert wanted in str(caught.value)


@pytest.mark.parametrize("method", ["run", "bind"])
@pytest.mark.parametrize(
    ("name", "dtype", "shape", "wanted"),
    [
        ("image", "float32", (4, 3, 8, 8), "the engine takes input, but was given image"),
        ("input", "float64", (4, 3, 8, 8), "input input is float64 and must be float32"),
        ("input", "uint8", (4, 3, 8, 8), "input input is uint8 and must be float32"),
        ("input", "float32", (1, 3, 8, 8), "has shape (1, 3, 8, 8), and the engine takes (2 to 8, 3, 8, 8)"),
        ("input", "float32", (9, 3, 8, 8), "has shape (9, 3, 8, 8), and the engine takes (2 to 8, 3, 8, 8)"),
        ("input", "float32", (4, 3, 9, 8), "has shape (4, 3, 9, 8), and the engine takes (2 to 8, 3, 8, 8)"),
        ("input", "float32", (3, 8, 8), "has shape (3, 8, 8), and the engine takes (2 to 8, 3, 8, 8)"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_by_name_and_limit(engine, method, name, dtype, shape, wanted):
    with pytest.raises(EnginewrightError) as caught:
        getattr(engine, method)({name: np.zeros(shape, dtype)})
    assert wanted in str(caught.value)


def test_an_engine_that_its_record_describes_wrongly_is_a_sentence(copy, machine, inference):
    """The record of another engine may lie beside it: the hashes in it are right, and the names are not."""
    file = copy / "engine.json"
    file.write_text(file.read_text().replace('"name": "input"', '"name": "image"'))
    with open_engine(copy, machine, inference) as engine:
        for method in (engine.run, engine.bind):
            with pytest.raises(EnginewrightError, match=r"is another one than its engine.json describes: .*image"):
                method({"image": np.zeros((4, 3, 8, 8), np.float32)})


@pytest.mark.parametrize("name", ["../engine.blob", "/etc/passwd", "a/b", "", "a\0b"])
def test_a_record_names_files_of_its_folder_only(copy, name):
    """`enginewright bundle` would copy them out of the bundle, too."""
    record = json.loads((copy / "engine.json").read_text())
    (copy / "engine.json").write_text(json.dumps(record | {"files": {name: "0"}}))
    with pytest.raises(EnginewrightError, match="String should match pattern"):
        read_engine(copy)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "the engine takes input, but was given nothing"),
        ({1: np.zeros(1)}, "the engine takes input, but was given 1"),
        (None, "names of its inputs, input, or the array alone, but was given a NoneType"),
        ([np.zeros((4, 3, 8, 8), np.float32)], "or the array alone, but was given a list"),
        ({"input": [[0.0]]}, "input input is a list and must be an array of float32"),
        ({"input": None}, "input input is a NoneType and must be"),
        (np.zeros((4, 3, 8, 8)), "input input is float64 and must be float32"),
        (np.zeros(()), "input input is float64 and must be float32"),
    ],
)
def test_what_is_no_input_is_refused_in_a_sentence(engine, given, wanted):
    assert wanted in error_of(lambda: engine.run(given))


def test_the_only_input_may_be_given_without_its_name(engine, samples):
    feeds = samples.cycled(4)
    (alone,) = feeds.values()
    for name, values in engine.run(feeds).items():
        np.testing.assert_array_equal(engine.run(alone)[name], values)


def test_a_graph_that_cannot_be_compiled_is_one_line_and_leaves_no_engine(tmp_path, machine, build, manifest):
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("input", "logits")]
    node = helper.make_node("Unheard", ["input"], ["logits"], domain="of.nobody")
    graph = helper.make_graph([node], "unusual", floats[:1], floats[1:])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("of.nobody", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "model.onnx")
    with pytest.raises(EnginewrightError, match=r" cannot compile .*model\.onnx: ."):
        build_engine(
            DescribedGraph("fp32", tmp_path / "model.onnx", manifest),
            target_of(machine, build.tensorrt),
            build,
            tmp_path / "out",
        )
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_graph_that_fails_on_zeros_is_built_with_a_sample(tmp_path, machine, build, manifest):
    """Zeros hold no token for a network that looks for one."""
    text = """g (float[batch,3] input, int64 before) => (float[batch] logits) {
        most = ReduceMax <keepdims = 0> (input) place = Cast <to = 7> (most) token = Sub (place, before)
        logits = Gather <axis = 1> (input, token)
    }"""
    graph = onnx.parser.parse_graph(text)
    del graph.input[1]
    graph.initializer.append(onnx.numpy_helper.from_array(np.int64(10), "before"))
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "model.onnx")
    graph, target = DescribedGraph("fp32", tmp_path / "model.onnx", manifest), target_of(machine, build.tensorrt)
    example = {"input": np.full((build.profile.batch.min, 3), 10, np.float32)}
    build_engine(replace(graph, example=example), target, build, tmp_path / "built")
    if machine.runtime == "onnxruntime":  # which runs the graph to list its layers
        with pytest.raises(EnginewrightError, match=r"cannot compile .*model\.onnx: .*out of data bounds"):
            build_engine(graph, target, build, tmp_path / "refused")


def test_an_engine_of_another_graph_or_precision_is_not_validated(engine, tiny_onnx, tmp_path):
    require_made_of(engine.record, "fp32", tiny_onnx)
    other = tmp_path / "other.onnx"
    other.write_bytes(tiny_onnx.read_bytes() + b" ")
    for precision, onnx_file in (("int8", tiny_onnx), ("fp32", other)):
        with pytest.raises(EnginewrightError, match=f"was not built as {precision} of .*dvc repro"):
            require_made_of(engine.record, precision, onnx_file)


def built_engine(onnx_file, build, machine, manifest, inference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines") / "fp32"
    build_engine(DescribedGraph("fp32", onnx_file, manifest), target_of(machine, build.tensorrt), build, folder)
    return open_engine(folder, machine, inference)


@pytest.fixture(scope="module")
def pair(pair_onnx, pair_build, machine, manifest, inference, tmp_path_factory):
    """An engine of two inputs and two outputs, for images of several sizes."""
    with built_engine(pair_onnx, pair_build, machine, manifest, inference, tmp_path_factory) as opened:
        yield opened


@pytest.fixture(scope="module")
def coarse(coarse_onnx, pair_build, machine, manifest, inference, tmp_path_factory):
    with built_engine(coarse_onnx, pair_build, machine, manifest, inference, tmp_path_factory) as opened:
        yield opened


@pytest.fixture(scope="module")
def sized(sized_onnx, sized_build, machine, manifest, inference, tmp_path_factory):
    with built_engine(sized_onnx, sized_build, machine, manifest, inference, tmp_path_factory) as opened:
        yield opened


@pytest.fixture(scope="module")
def chosen(chosen_onnx, build, machine, manifest, inference, tmp_path_factory):
    with built_engine(chosen_onnx, build, machine, manifest, inference, tmp_path_factory) as opened:
        yield opened


def test_several_inputs_and_outputs_and_their_sizes_are_recorded(pair):
    interface = pair.record.interface
    assert [(spec.name, spec.dtype, spec.shape) for spec in interface.inputs] == [
        ("image", "float32", ("batch", 3, "height", "width")),
        ("numbers", "int64", ("batch", 2)),
    ]
    assert [(spec.name, spec.dtype, spec.shape) for spec in interface.outputs] == [
        ("scores", "float32", ("batch", 16)),
        ("map", "float32", ("batch", 32, "height", "width")),
    ]
    assert pair.record.executed == {"fp32": 2}


def test_one_array_is_refused_where_there_are_several_inputs(pair):
    said = error_of(lambda: pair.run(np.zeros(1)))
    assert re.search(r"by the names of its inputs, \w+, \w+, but was given a ndarray", said)


@pytest.mark.parametrize("sizes", [(2, 8, 8), (1, 8, 8), (3, 13, 9), (4, 16, 12)], ids=str)
def test_every_output_is_computed_at_every_size_and_by_a_bound_call_too(pair, pair_onnx, pair_feeds, sizes):
    feeds = pair_feeds(*sizes)
    session = onnxruntime.InferenceSession(pair_onnx, providers=["CPUExecutionProvider"])
    wanted = dict(zip(("scores", "map"), session.run(["scores", "map"], feeds), strict=True))
    call = pair.bind(feeds)
    call()
    got = pair.run(feeds)
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        assert got[name] == pytest.approx(values, abs=1e-4), name
    assert left_by(call) == pytest.approx(wanted["scores"], abs=1e-4)


@pytest.mark.parametrize(
    ("image", "numbers", "wanted"),
    [
        (
            (2, 3, 17, 8),
            (2, 2),
            "input image has shape (2, 3, 17, 8), and the engine takes (1 to 4, 3, 8 to 16, 8 to 12)",
        ),
        (
            (2, 3, 8, 7),
            (2, 2),
            "input image has shape (2, 3, 8, 7), and the engine takes (1 to 4, 3, 8 to 16, 8 to 12)",
        ),
        ((2, 3, 8, 8), (2, 3), "input numbers has shape (2, 3), and the engine takes (1 to 4, 2)"),
        ((2, 3, 8, 8), (3, 2), "input numbers has batch 3, and input image has 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_input_and_limit(pair, image, numbers, wanted):
    with pytest.raises(EnginewrightError) as caught:
        pair.run({"image": np.zeros(image, np.float32), "numbers": np.zeros(numbers, np.int64)})
    assert str(caught.value) == wanted


def test_a_missing_input_is_refused_with_a_list_of_all_inputs(pair, pair_feeds):
    with pytest.raises(EnginewrightError, match="the engine takes image, numbers, but was given image"):
        pair.run({"image": pair_feeds(2, 8, 8)["image"]})


@pytest.mark.parametrize("sizes", [(2, 8, 8), (1, 9, 8), (3, 13, 11), (4, 16, 12)], ids=str)
def test_the_size_of_an_output_may_follow_from_the_images(coarse, coarse_onnx, pair_feeds, sizes):
    (spec,) = coarse.record.interface.outputs
    assert spec.shape == ("batch", 8, "(height + 1)//2", "?")
    feeds = {"image": pair_feeds(*sizes)["image"]}
    (wanted,) = open_as_written(coarse_onnx).run(None, feeds)
    call = coarse.bind(feeds)
    call()
    for got in (coarse.run(feeds)["map"], left_by(call)):
        assert got.shape == wanted.shape
        assert got == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(("batch", "count"), [(2, 3), (8, 1), (2, 6)])
def test_the_size_of_an_output_may_follow_from_values(chosen, chosen_onnx, chosen_feeds, batch, count):
    feeds = chosen_feeds(batch, count)
    wanted, got = run_graph(open_as_written(chosen_onnx), feeds), chosen.run(feeds)
    chosen.bind(feeds)()
    assert got["largest"].shape == (batch, count)
    assert all(np.array_equal(got[name], values) for name, values in wanted.items())


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (4, 16), (16, 5)])
def test_the_values_of_an_input_may_be_sizes(sized, sized_onnx, rows, columns):
    feeds = {"image": np.random.default_rng(rows).random((2, 3, 8, 8), np.float32), "sizes": np.array([rows, columns])}
    wanted, call = run_graph(open_as_written(sized_onnx), feeds)["map"], sized.bind(feeds)
    call()
    for got in (sized.run(feeds)["map"], left_by(call)):
        assert got.shape == (2, 3, 2 * rows, 2 * columns)
        assert got == pytest.approx(wanted, abs=1e-5)


def test_sizes_outside_their_ranges_are_refused(sized):
    given = {"image": np.zeros((2, 3, 8, 8), np.float32), "sizes": np.array([6, 17])}
    assert error_of(sized.run, given) == "input sizes holds [6, 17], and the engine takes (4 to 16, 4 to 16)"


@pytest.mark.parametrize(
    ("graph", "sizes", "said"),
    [
        ("sized_onnx", "sized_build", "output map is, and its size 'tall' at axis 2"),
        ("coarse_onnx", "pair_build", "output map is, and its size '(height + 1)//2' at axis 2"),
        ("chosen_onnx", "build", "output largest is, and its size 'count' at axis 1"),
    ],
)
def test_onnx_runtime_on_a_gpu_refuses_an_output_of_unknown_size(request, graph, sizes, said, tmp_path, monkeypatch):
    runtime, path = load_runtime("onnxruntime"), request.getfixturevalue(graph)
    monkeypatch.setattr(onnxruntime_module, "device", lambda: "cuda")
    assert error_of(runtime.compile, path, read_blueprint(path, request.getfixturevalue(sizes)), tmp_path) == (
        f"ONNX Runtime on a GPU must be told how large {said} is known from a run alone: let only the batch vary in "
        "build.profile, or take TensorRT"
    )
    assert list(tmp_path.iterdir()) == []

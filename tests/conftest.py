"""A tiny classifier and what surrounds it: small enough that every test can afford the real thing."""

import gc
import signal
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from support.pass_checks import model_of_text
from support.warm_python import let_pytorch_read_its_operators_once, warm_python

from enginewright.core.params.build import Axis, BuildParams, InferenceParams, Profile, Range, TensorRTParams
from enginewright.core.params.samples import Preprocessing, SamplesParams
from enginewright.data.sample_set import MANIFEST, Manifest, Sample, SampleSet, input_file
from enginewright.data.sources.files import open_folder
from enginewright.data.splits import write_split
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.onnx_file import save_graph
from enginewright.precision import search as journal

pytest_plugins = ("support.runs",)

CLASSES = 16
SIZE = 8
SLOWEST = (
    "test_pipeline.py", "test_simulation.py", "test_ssh.py", "test_cluster.py", "test_user_models.py",
    "test_examples.py", "test_bundle.py", "test_tensorrt_rtx.py", "test_several_models.py", "test_reduction.py",
    "test_documents.py", "test_notebook.py", "test_new.py", "test_recipes.py", "test_requirements.py", "test_cores.py",
    "test_contenders.py", "test_quantized.py", "test_wheel.py", "test_browser.py", "test_export.py", "test_fuzz.py",
)  # fmt: skip


def pytest_configure(config):
    """Take Ctrl-C and a lost terminal as a terminal's programs do: what a script or nohup starts ignores them, and so
    would every process that a test starts and interrupts. A worker lets the warm Python import while it collects."""
    if hasattr(config, "workerinput"):
        Thread(target=warm_python, daemon=True).start()
    for number, usual in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_collection_modifyitems(items):
    """Begin with the files that take minutes: else one worker is left with them at the end."""
    items.sort(key=lambda item: SLOWEST.index(item.path.name) if item.path.name in SLOWEST else len(SLOWEST))


def pytest_collection_finish():
    """Keep what is imported by now, a million objects, out of each search for garbage that the tests bring about."""
    if "enginewright.model.export" in sys.modules:
        let_pytorch_read_its_operators_once()
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep what tests search out of the developer's cache, which holds few files."""
    cache = tmp_path_factory.getbasetemp() / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "user_cache_path", lambda _: cache)
        yield


@pytest.fixture(scope="session")
def tiny_graph():
    """A graph of Conv, Relu, GlobalAveragePool, Flatten and Gemm, wide enough for ModelOpt to quantize it."""
    rng = np.random.default_rng(7)

    def weights(name, *shape):
        return numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)

    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["input", "w1", "b1"], ["conv"], "conv1", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["conv"], ["relu"], "relu1"),
            helper.make_node("Conv", ["relu", "w2", "b2"], ["conv_2"], "conv2", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["conv_2"], ["relu_2"], "relu2"),
            helper.make_node("GlobalAveragePool", ["relu_2"], ["pooled"], "pool"),
            helper.make_node("Flatten", ["pooled"], ["features"], "flatten"),
            helper.make_node("Gemm", ["features", "w3", "b3"], ["logits"], "classifier", transB=1),
        ],
        "tiny",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [
            weights("w1", 32, 3, 3, 3),
            weights("b1", 32),
            weights("w2", 32, 32, 3, 3),
            weights("b2", 32),
            weights("w3", CLASSES, 32),
            weights("b3", CLASSES),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model


@pytest.fixture(scope="session")
def tiny_onnx(tiny_graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    onnx.save(tiny_graph, path)
    return path


@pytest.fixture(scope="session")
def plugin_onnx(tiny_graph, tmp_path_factory):
    """The tiny graph after an operator that adds zeros, and that TensorRT has as a plugin alone."""
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    model.graph.node[0].input[0] = "scattered"
    scatter = helper.make_node(
        "ScatterElements", ["input", "indices", "zeros"], ["scattered"], "scatter", axis=1, reduction="add"
    )
    model.graph.node.insert(0, scatter)
    for name, dtype in {"indices": np.int64, "zeros": np.float32}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.zeros((1, 1, 1, 1), dtype), name))
    path = tmp_path_factory.mktemp("plugin") / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def pair_onnx(tmp_path_factory):
    """A graph from an image of any size and two numbers below six to scores and a map of the size of the image."""
    rng = np.random.default_rng(5)
    weights = {"w1": (32, 3, 3, 3), "table": (6, 3), "w2": (CLASSES, 38), "b2": (CLASSES,)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w1"], ["conv"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["conv"], ["map"], "relu"),
            helper.make_node("GlobalAveragePool", ["map"], ["pooled"], "pool"),
            helper.make_node("Flatten", ["pooled"], ["seen"], "flatten_seen"),
            helper.make_node("Gather", ["table", "numbers"], ["rows"], "look_up"),
            helper.make_node("Flatten", ["rows"], ["looked_up"], "flatten_rows"),
            helper.make_node("Concat", ["seen", "looked_up"], ["both"], "concat", axis=1),
            helper.make_node("Gemm", ["both", "w2", "b2"], ["scores"], "classifier", transB=1),
        ],
        "pair",
        [
            helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"]),
            helper.make_tensor_value_info("numbers", TensorProto.INT64, ["batch", 2]),
        ],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", CLASSES]),
            helper.make_tensor_value_info("map", TensorProto.FLOAT, ["batch", 32, "height", "width"]),
        ],
        [
            numpy_helper.from_array(rng.normal(0, 0.5, shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    path = tmp_path_factory.mktemp("pair") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.fixture(scope="session")
def coarse_onnx(tmp_path_factory):
    """A graph from an image of any size to a map of half its size. It does not say how the width follows."""
    kernel = numpy_helper.from_array(np.random.default_rng(6).normal(0, 0.5, (8, 3, 3, 3)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "w"], ["map"], "conv", strides=[2, 2], pads=[1, 1, 1, 1])],
        "coarse",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("map", TensorProto.FLOAT, ["batch", 8, "(height + 1)//2", None])],
        [kernel],
    )
    path = tmp_path_factory.mktemp("coarse") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.fixture(scope="session")
def chosen_onnx(tmp_path_factory):
    """A graph that returns the largest numbers of each row, as many as there are columns without a negative minimum: a
    size that follows from the values of the input."""
    graph = helper.make_graph(
        [
            helper.make_node("Neg", ["numbers"], ["others"], "others"),
            helper.make_node("ReduceMin", ["numbers", "first"], ["least"], "least", keepdims=0),
            helper.make_node("GreaterOrEqual", ["least", "zero"], ["chosen"], "chosen"),
            helper.make_node("Cast", ["chosen"], ["counted"], "counted", to=TensorProto.INT64),
            helper.make_node("ReduceSum", ["counted", "first"], ["count"], "count"),
            helper.make_node("TopK", ["numbers", "count"], ["largest", "places"], "largest", axis=1),
        ],
        "chosen",
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["batch", 6])],
        [
            helper.make_tensor_value_info("others", TensorProto.FLOAT, ["batch", 6]),
            helper.make_tensor_value_info("largest", TensorProto.FLOAT, ["batch", "count"]),
        ],
        [numpy_helper.from_array(np.array([0]), "first"), numpy_helper.from_array(np.float32(0), "zero")],
    )
    path = tmp_path_factory.mktemp("chosen") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


SIZED_BODY = """
    [wide] wide = Cast <to = 7> (sizes) [two] two = Mul (wide, factor)
    [y] resized = Resize <axes = [2, 3], mode = "linear"> (image, , , two) [map] map = Relu (resized)
"""


@pytest.fixture(scope="session")
def sized_onnx(tmp_path_factory):
    """A graph whose second input holds a size: its output is twice as large, whatever the size of the image."""
    given = "float[batch, 3, 8, 8] image, int64[2] sizes"
    path = tmp_path_factory.mktemp("sized") / "model.onnx"
    save_graph(
        model_of_text(f"g ({given}) => (float[batch, 3, tall, wide] map) {{ {SIZED_BODY} }}", {"factor": np.int64(2)}),
        path,
    )
    return path


@pytest.fixture(scope="session")
def sized_build(build):
    """Parameters for `sized_onnx`: the size has a range of its own."""
    axes = {name: Axis(min=4, opt=6, max=16, values={"sizes": n}) for n, name in enumerate(("rows", "columns"))}
    return build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=2, max=4), axes=axes)})


@pytest.fixture(scope="session")
def chosen_feeds():
    """Make rows of numbers of which `count` columns have no negative one."""

    def feeds(batch, count):
        numbers = np.random.default_rng(count).uniform(0.1, 1, (batch, 6)).astype(np.float32)
        numbers[0, count:] = -1
        return {"numbers": numbers}

    return feeds


@pytest.fixture(scope="session")
def pair_feeds():
    def feeds(batch, height, width):
        rng = np.random.default_rng(batch)
        images = rng.normal(0, 1, (batch, 3, height, width)).astype(np.float32)
        return {"image": images, "numbers": rng.integers(0, 6, (batch, 2))}

    return feeds


@pytest.fixture(scope="session")
def pair_build(build):
    sizes = {"height": Range(min=8, opt=8, max=16), "width": Range(min=8, opt=8, max=12)}
    return build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=2, max=4), **sizes)})


@pytest.fixture(scope="session")
def preprocessing():
    return Preprocessing(resize=SIZE, crop=SIZE, interpolation="bilinear", mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))


@pytest.fixture
def samples_params(preprocessing):
    def make(source="data/pets", **changes):
        chosen = {"seed": 0, "validation": 5, "training": 4, "calibration": 3, "preprocessing": preprocessing}
        return SamplesParams(source=source, **chosen | changes)

    return make


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """A project with data/pets: two cats and one dog, each image of one shade."""
    monkeypatch.chdir(tmp_path)
    for name, shade in {"dog/1.png": 30, "cat/b.JPG": 20, "cat/deeper/a.png": 10}.items():
        path = Path("data/pets") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 9), shade).save(path)
    Path("data/pets/cat/notes.txt").write_text("no image")
    Path("data/pets/cat/._b.JPG").write_bytes(b"what some systems put beside each photo")
    Path("data/pets/.hidden").mkdir()
    return Path("data/pets")


@pytest.fixture(scope="session")
def manifest(preprocessing):
    samples = tuple(Sample(name=f"image {i}", sha256=f"{i:064x}", label=i % CLASSES) for i in range(21))
    classes = tuple(f"class {label}" for label in range(CLASSES))
    return Manifest(
        task="classification",
        source="data/tiny",
        inputs=("input",),
        preprocessing=preprocessing,
        class_names=classes,
        samples=samples,
    )


@pytest.fixture(scope="session")
def samples(manifest, tmp_path_factory):
    """A set of 21 images of noise, which only the batch sizes 1, 3, 7 and 21 divide."""
    folder = tmp_path_factory.mktemp("samples")
    shape = (len(manifest.samples), 3, SIZE, SIZE)
    np.save(folder / input_file(0), np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8))
    manifest.write(folder / MANIFEST)
    return SampleSet.open(folder)


@pytest.fixture(scope="session")
def machine():
    return describe_machine("openvino")


@pytest.fixture(scope="session")
def profile():
    return Profile(batch=Range(min=2, opt=4, max=8))


@pytest.fixture(scope="session")
def build(profile):
    tensorrt = TensorRTParams(
        workspace_mb=None,
        optimization_level=3,
        avg_timing_iterations=8,
        tiling_optimization_level="none",
        max_aux_streams=None,
        timing_cache=True,
        hardware_compatibility="none",
        version_compatible=False,
        compute_capabilities=("8.6", "8.9", "12.0"),
        plugins=(),
    )
    return BuildParams(profile=profile, tf32=True, tensorrt=tensorrt)


@pytest.fixture(scope="session")
def inference():
    return InferenceParams(threads=1, cuda_graph=False)


@pytest.fixture(scope="module")
def built(tiny_onnx, machine, build, manifest, tmp_path_factory):
    """The tiny classifier as an engine for the machine, for which a module may define its own fixture."""
    folder = tmp_path_factory.mktemp("engines") / "fp32"
    build_engine(DescribedGraph("fp32", tiny_onnx, manifest), target_of(machine, build.tensorrt), build, folder)
    return folder


@pytest.fixture(scope="module")
def validated(photos, preprocessing, tmp_path_factory):
    """The photos that a module provides, as the pipeline reads them for validation."""
    source, folder = open_folder(photos, photos.parent, None), tmp_path_factory.mktemp("validated") / "validation"
    params = SamplesParams(
        source=str(photos), seed=0, validation=len(source), training=0, calibration=1, preprocessing=preprocessing
    )
    write_split(source, range(len(source)), params, folder)
    return SampleSet.open(folder)


@pytest.fixture(scope="module")
def expected(built, machine, inference, validated):
    """The engine's logits for each of the photos."""
    names = [sample.name for sample in validated.manifest.samples]
    with open_engine(built, machine, inference) as engine:
        logits = engine.run(validated.cycled(len(names)))["logits"]
    return dict(zip(names, logits, strict=True))

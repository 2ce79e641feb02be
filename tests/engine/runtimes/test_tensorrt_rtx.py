"""The runtime TensorRT for RTX, with NVIDIA's real parser and builder, which need no GPU."""

import importlib
import json
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support.builds import build_apart, building_here
from support.detectors import small_detector
from support.pass_checks import model_of_text
from support.patterns import PATTERNS, pattern
from support.plugins import plugin_library
from torch import nn
from torchvision.models.resnet import Bottleneck

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.params.build import Axis, Profile, Range
from enginewright.core.params.model import BoxesParams
from enginewright.core.params.precisions import Keep
from enginewright.engine import runtimes as machine_module
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.gpu import Hardware
from enginewright.engine.machine import target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes import describe_machine, load_runtime, tensorrt
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.pixels import take_pixels
from enginewright.graph.read_interface import read_blueprint
from enginewright.graph.simplify import fold_constants, simplify_graph
from enginewright.model.export import export_model
from enginewright.precision.blocks import write_blocks
from enginewright.precision.calibration.cache import Calibration
from enginewright.precision.cast import cast
from enginewright.precision.dialect import dialect_of
from enginewright.precision.in_dialect import Ingredients, cast_in_dialect, quantize_in_dialect, rewritten
from enginewright.precision.quantize import quantize

if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
    pytest.skip("there is no wheel of TensorRT for RTX but for Linux on x86_64", allow_module_level=True)

EVERYTHING = Keep(op_types=(), nodes=())
IMAGE = (TensorProto.FLOAT, ["batch", 3, 3])
PRECISIONS = ("fp32", "fp16", "bf16", "int8", "fp8")
TYPED = {
    "fp32": ("fp32", None),
    "fp16": ("fp16", None),
    "bf16": ("bf16", None),
    "int8": ("int8", "fp16"),
    "int8 beside fp32": ("int8", "fp32"),
    "fp8": ("fp8", "fp16"),
    "fp8 beside fp32": ("fp8", "fp32"),
}
POLYGRAPHY = """
import json, sys
import tensorrt_rtx as trt
from polygraphy.backend.trt import Profile, create_config, engine_bytes_from_network, network_from_onnx_path
from polygraphy.logger import G_LOGGER
G_LOGGER.module_severity = G_LOGGER.ERROR
found = {}
for name, path in json.loads(sys.argv[1]).items():
    builder, network, parser = network_from_onnx_path(path, strongly_typed=True)
    shapes = [(batch, *tuple(network.get_input(0).shape)[1:]) for batch in (2, 4, 8)]
    config = create_config(builder, network, profiles=[Profile().add("input", *shapes)])
    config.num_compute_capabilities = 2
    for index, capability in enumerate((trt.ComputeCapability.SM89, trt.ComputeCapability.SM120)):
        config.set_compute_capability(capability, index)
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    found[name] = {
        "convolutions": [layer.get_input(0).dtype.name for layer in layers if layer.type == trt.LayerType.CONVOLUTION],
        "quantized": sorted({layer.get_output(0).dtype.name for layer in layers
                             if layer.type == trt.LayerType.QUANTIZE}),
        "bytes": len(bytes(engine_bytes_from_network((builder, network, parser), config))),
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module", autouse=True)
def without_gpu():
    """Hide the GPU of this machine, if it has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_module, "find_gpu", lambda: None)
        patch.setattr(tensorrt, "find_gpu", lambda: None)
        yield


@pytest.fixture(scope="module")
def machine(without_gpu):
    return describe_machine("tensorrt_rtx")


@pytest.fixture(scope="module")
def ada(build):
    """The parameters for GPUs that execute all precisions."""
    return for_gpus(build, "8.9", "12.0")


@pytest.fixture(scope="module")
def make(machine, manifest):
    """Build an engine of an ONNX file."""

    def made(onnx_file, build, folder, precision="fp32"):
        return build_engine(
            DescribedGraph(precision, onnx_file, manifest), target_of(machine, build.tensorrt), build, folder
        )

    return made


@pytest.fixture(scope="module", autouse=True)
def built_here():
    with building_here():
        yield


@pytest.fixture(scope="module")
def typed(tiny_onnx, tmp_path_factory):
    """The tiny classifier in every precision, as `convert` writes it."""
    return written_in(tmp_path_factory.mktemp("typed"), tiny_onnx, TYPED)


@pytest.fixture(scope="module")
def built(typed, make, ada, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    return {name: make(path, ada, folder / name, TYPED[name][0]) and folder / name for name, path in typed.items()}


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """The first layers of a ResNet and two of its last bottlenecks, which have most of its weights, exported and
    simplified as the stages do it, in every precision."""
    torch.manual_seed(0)
    shortcut = nn.Sequential(nn.Conv2d(64, 2048, 1, 2, bias=False), nn.BatchNorm2d(2048))
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        Bottleneck(64, 512, 2, shortcut), Bottleneck(2048, 512),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10),
    ).eval()  # fmt: skip
    example, profile = np.zeros((2, 3, 64, 64), np.float32), Profile(batch=Range(min=1, opt=8, max=16))
    graph = export_model(model, {"input": example}, {"input": {0: "batch"}}, profile, opset=20)
    folder = tmp_path_factory.mktemp("resnet")
    save_graph(fold_constants(simplify_graph(graph)), folder / "simplified.onnx")
    return written_in(folder, folder / "simplified.onnx", {name: TYPED[name] for name in PRECISIONS})


def for_gpus(build, *capabilities):
    return build.model_copy(
        update={"tensorrt": build.tensorrt.model_copy(update={"compute_capabilities": capabilities})}
    )


def written_in(folder, source, wanted):
    graph = load_graph(source)
    produced = [name for node in graph.graph.node for name in node.output]
    ranges = dict.fromkeys([graph.graph.input[0].name, *produced], 4.0)
    paths = {}
    for name, (precision, rest) in wanted.items():
        paths[name] = folder / f"{name.replace(' ', '_')}.onnx"
        if precision == "fp32":
            save_graph(graph, paths[name])
        elif rest is None:
            save_graph(cast(source, precision, EVERYTHING), paths[name])
        else:
            save_graph(quantize(source, precision, ranges, EVERYTHING, rest), paths[name])
    return paths


def test_each_profile_is_built(tiny_onnx, make, ada, tmp_path):
    ranges = tuple({"batch": Range(min=size, opt=size, max=size)} for size in (2, 8))
    plans = {}
    for name, profiles in {"one": (), "three": ranges}.items():
        make(tiny_onnx, ada.model_copy(update={"profiles": profiles}), tmp_path / name)
        plans[name] = (tmp_path / name / "engine.plan").read_bytes()
    assert len(plans["three"]) > len(plans["one"])


@pytest.mark.parametrize("name", PATTERNS)
def test_the_patterns_of_nvidias_rules_are_built_in_int8_and_fp8(name, ada, tmp_path):
    save_graph(pattern(name), tmp_path / "pattern.onnx")
    wanted = {name: how for name, how in TYPED.items() if how[1] in ("fp16", "fp32")}
    for kind, path in written_in(tmp_path, tmp_path / "pattern.onnx", wanted).items():
        made = tmp_path / kind
        made.mkdir()
        load_runtime("tensorrt_rtx").compile(path, read_blueprint(path, ada), made)
        assert list(made.iterdir()), kind


FOLDED = """
    [a] a = Conv <strides = [2, 2], kernel_shape = [2, 2]> (x, c) [r] r = Reshape (a, columns)
    [f] f = Col2Im <strides = [2, 2]> (r, image, block) [y] y = ConvTranspose (f, w)
"""  # as `torch.nn.functional.fold` becomes, and as a U-Net doubles its images


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_nvidias_compiler_lacks_is_written_otherwise(precision, ada, tmp_path):
    sizes = {"columns": np.array([0, 32, 16]), "image": np.array([8, 8]), "block": np.array([2, 2])}
    random, shapes = np.random.default_rng(0).normal, {"c": (32, 32, 2, 2), "w": (8, 8, 2, 2)}
    weights = {name: random(size=shape).astype(np.float32) for name, shape in shapes.items()}
    given = model_of_text(f"g (float[batch,32,8,8] x) => (float[batch,8,9,9] y) {{ {FOLDED} }}", sizes | weights)
    ranges = Calibration.model_construct(amax=dict.fromkeys("xarfy", 4.0), lowest={}, source="here")
    path, dialect = tmp_path / "model.onnx", dialect_of("tensorrt", "cuda", "8.9")
    graph = rewritten(given, dialect, precision)
    save_graph(graph, path)
    if precision in ("fp16", "bf16"):
        graph, _ = cast_in_dialect(precision, path, {}, dialect, EVERYTHING)
    elif precision != "fp32":
        graph, _ = quantize_in_dialect(precision, Ingredients(path, ranges, {}, dialect, EVERYTHING))
    save_graph(graph, path)
    load_runtime("tensorrt_rtx").compile(path, read_blueprint(path, ada), tmp_path)


def operator_graph(
    path,
    nodes,
    inputs=(("input", TensorProto.FLOAT, ["batch", 3]),),
    output=(TensorProto.FLOAT, ["batch", 3]),
    constants=(),
):
    """Write a graph of a few nodes, which computes `logits` from `input`."""
    graph = helper.make_graph(
        [helper.make_node(*arguments, **options) for arguments, options in nodes],
        "graph",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info("logits", *output)],
        list(constants),
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my.domain", 1)]
    path.parent.mkdir(exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def refusal(call, *arguments):
    """Return the error, and check that it is one line of bounded length."""
    with pytest.raises(EnginewrightError) as caught:
        call(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 700
    return sentence


# Every precision builds.


def test_an_output_whose_size_follows_from_the_images_is_built(coarse_onnx, pair_build, make, tmp_path):
    record = make(coarse_onnx, for_gpus(pair_build, "8.9", "12.0"), tmp_path / "coarse")
    assert record.interface.outputs[0].shape == ("batch", 8, "(height + 1)//2", "?")
    assert record.bytes > 1000


@pytest.mark.parametrize("name", TYPED)
def test_every_precision_is_built_from_the_graph_that_convert_writes(built, typed, name):
    record = EngineRecord.read(built[name] / "engine.json")
    plan = built[name] / "engine.plan"
    assert plan.read_bytes()[:4] == b"vtrt"
    assert record.precision == TYPED[name][0]
    assert record.files == {"engine.plan": sha256(plan)}
    assert record.bytes == plan.stat().st_size
    assert (record.onnx_sha256, record.onnx_bytes) == (sha256(typed[name]), typed[name].stat().st_size)
    assert record.build_seconds > 0


@pytest.mark.parametrize("name", TYPED)
def test_an_engine_takes_and_gives_float32_whatever_it_computes_in(built, name):
    record = EngineRecord.read(built[name] / "engine.json")
    assert [(spec.name, spec.dtype, spec.shape) for spec in record.interface.inputs] == [
        ("input", "float32", ("batch", 3, 8, 8))
    ]
    assert [(spec.name, spec.dtype, spec.shape) for spec in record.interface.outputs] == [
        ("logits", "float32", ("batch", 16))
    ]


@pytest.mark.parametrize(
    ("name", "capabilities", "words"),
    [
        ("fp8", ("8.6",), "Cannot compile for target(s) sm86, because the model contains HW-specific datatypes: fp8"),
        ("fp8", ("8.6", "8.9", "12.0"), "Cannot compile for target(s) sm86, because"),
        ("fp8 beside fp32", ("8.0", "8.6", "8.9"), "Cannot compile for target(s) sm80, sm86, because"),
        ("bf16", ("7.5", "8.9"), "Cannot compile for target(s) sm75, because"),
        ("fp32", ("7.5", "8.9"), "Cannot compile operation 'classifier' for Turing (SM75)"),
    ],
)
def test_a_gpu_that_cannot_execute_a_precision_is_named_with_the_way_out(
    typed, make, build, tmp_path, name, capabilities, words
):
    sentence = refusal(make, typed[name], for_gpus(build, *capabilities), tmp_path / "out" / "engine")
    assert sentence.startswith(f"TensorRT for RTX cannot build {typed[name]}: ")
    assert words in sentence
    assert sentence.endswith(
        "Those GPUs cannot execute this precision: drop them from build.tensorrt.compute_capabilities"
    )
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", TYPED)
def test_graphs_that_take_pixels_are_built(typed, make, ada, preprocessing, tmp_path, name, layout):
    save_graph(take_pixels(load_graph(typed[name]), preprocessing, layout), tmp_path / "model.onnx")
    record = make(tmp_path / "model.onnx", ada, tmp_path / "engine", TYPED[name][0])
    sizes = (3, 8, 8) if layout == "nchw" else (8, 8, 3)
    assert [(spec.dtype, spec.shape) for spec in record.interface.inputs] == [("uint8", ("batch", *sizes))]
    assert " --optShapes=input:" in (tmp_path / "engine/reproduce.sh").read_text()


def test_weights_beside_the_graph_are_built_into_the_engine(tiny_onnx, make, ada, tmp_path, monkeypatch):
    monkeypatch.setattr("enginewright.graph.data_apart.MOST_BYTES", 1000)
    monkeypatch.setattr("enginewright.graph.data_apart.FEWEST_BYTES", 256)
    (tmp_path / "large").mkdir()
    save_graph(load_graph(tiny_onnx), tmp_path / "large/model.onnx")
    record = make(tmp_path / "large/model.onnx", ada, tmp_path / "fp32")
    assert record.bytes > record.onnx_bytes > 40_000


def test_axes_of_two_inputs_are_one_profile(make, ada, tmp_path):
    source = operator_graph(
        tmp_path / "in" / "model.onnx",
        [(("MatMul", ["ids", "mask"], ["logits"], "product"), {})],
        [("ids", TensorProto.FLOAT, ["batch", "length", 4]), ("mask", TensorProto.FLOAT, ["batch", 4, "length"])],
        (TensorProto.FLOAT, ["batch", "length", "length"]),
    )
    length = {"length": Axis(min=2, opt=8, max=16, inputs={"ids": 1, "mask": 2})}
    profile = ada.profile.model_copy(update={"axes": length})
    record = make(source, ada.model_copy(update={"profile": profile}), tmp_path / "out" / "fp32")
    assert record.profile.axes == length
    assert "--minShapes=ids:2x2x4,mask:2x4x2 " in (tmp_path / "out/fp32/reproduce.sh").read_text()


def test_tiling_and_streams_are_options_of_the_real_builder(tiny_onnx, make, ada, tmp_path):
    chosen = ada.tensorrt.model_copy(update={"tiling_optimization_level": "full", "max_aux_streams": 2})
    make(tiny_onnx, ada.model_copy(update={"tensorrt": chosen}), tmp_path / "engine")
    script = (tmp_path / "engine" / "reproduce.sh").read_text()
    assert "--tilingOptimizationLevel=3" in script
    assert "--maxAuxStreams=2" in script


def test_an_engine_that_streams_its_weights_is_built(tiny_onnx, make, ada, tmp_path):
    chosen = ada.tensorrt.model_copy(update={"streaming": True})
    make(tiny_onnx, ada.model_copy(update={"tensorrt": chosen}), tmp_path / "engine")
    assert "--allowWeightStreaming" in (tmp_path / "engine" / "reproduce.sh").read_text()


@pytest.mark.parametrize("options", [{"weights": "stripped"}, {"refit": True}], ids=str)
def test_what_it_builds_on_a_gpu_alone_is_a_sentence(tiny_onnx, make, ada, tmp_path, options):
    chosen = ada.tensorrt.model_copy(update=options)
    with pytest.raises(EnginewrightError, match=r"without a GPU what needs one: build\.tensorrt\.weights: stripped"):
        make(tiny_onnx, ada.model_copy(update={"tensorrt": chosen}), tmp_path / "engine")


@pytest.mark.parametrize(("rest", "tokens"), [("fp32", "9"), ("fp16", "9"), ("fp16", "3,5")])
@pytest.mark.parametrize(
    ("precision", "lacking", "words"),
    [
        ("int4", "7.5", "Cannot compile for target(s) sm75, because the model contains HW-specific datatypes: int4"),
        ("nvfp4", "8.9", "Cannot compile for target(s) sm89, because the model contains HW-specific datatypes: fp4"),
        ("mxfp8", "8.6", "Cannot compile for target(s) sm86, because the model contains HW-specific datatypes: fp8"),
    ],
)
def test_blocks_are_built_for_the_gpus_that_have_them(make, build, tmp_path, precision, lacking, words, rest, tokens):
    nodes = "[up] u = MatMul (x, w) ub = Add (u, b) h = Gelu (ub) [down] d = MatMul (h, v) y = Add (d, x)"
    weights = {name: np.eye(64, dtype=np.float32) for name in "wv"} | {"b": np.ones(64, np.float32)}
    graph = model_of_text(f"g (float[batch,{tokens},64] x) => (float[batch,{tokens},64] y) {{ {nodes} }}", weights)
    if rest == "fp16":
        save_graph(graph, tmp_path / "float32.onnx")
        graph = cast(tmp_path / "float32.onnx", "fp16", EVERYTHING)
    written = write_blocks(graph, precision, {"up": 4.0, "down": 4.0})
    assert written.in_blocks == ["up", "down"]
    save_graph(written.model, tmp_path / "model.onnx")
    make(tmp_path / "model.onnx", for_gpus(build, "12.0"), tmp_path / "engine", precision)
    assert words in refusal(make, tmp_path / "model.onnx", for_gpus(build, lacking), tmp_path / "none", precision)


@pytest.mark.parametrize("precision", ["w8", "int4", "nvfp4", "mxfp8"])
@pytest.mark.parametrize("rest", ["fp32", "fp16"])
def test_blocks_of_linear_layers_are_built(make, build, tmp_path, precision, rest):
    """PyTorch makes Gemm of those that read vectors."""
    text = "g (float[batch,64] x) => (float[batch,64] y) { [up] y = Gemm <transA = 0, transB = 1> (x, w, b) }"
    graph = model_of_text(text, {"w": np.eye(64, dtype=np.float32), "b": np.ones(64, np.float32)})
    if rest == "fp16":
        save_graph(graph, tmp_path / "float32.onnx")
        graph = cast(tmp_path / "float32.onnx", "fp16", EVERYTHING)
    save_graph(write_blocks(graph, precision, {"up": 4.0}).model, tmp_path / "model.onnx")
    make(tmp_path / "model.onnx", for_gpus(build, "12.0"), tmp_path / "engine", precision)


def test_an_error_does_not_name_nvidias_source_files(typed, make, build, tmp_path):
    assert ".cpp" not in refusal(make, typed["fp8"], for_gpus(build, "8.6"), tmp_path / "fp8", "fp8")


def test_a_precision_of_older_gpus_is_built_for_them(typed, make, build, tmp_path):
    record = make(typed["int8"], for_gpus(build, "7.5"), tmp_path / "int8", "int8")
    assert record.target.capabilities == ("7.5",)


def test_the_builder_says_how_far_it_is(tiny_onnx, make, ada, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(tensorrt.Phases, "_show", lambda self: found.append([*self._open]))
    make(tiny_onnx, ada, tmp_path / "fp32")
    assert found[0] == ["Building engine"]
    assert len(max(found, key=len)) > 1  # phases within phases


def test_building_prints_nothing(typed, make, ada, tmp_path, capfd):
    make(typed["int8"], ada, tmp_path / "int8", "int8")
    assert capfd.readouterr() == ("", "")


def test_a_resnet_builds_in_every_precision_and_shrinks_with_it(resnet, make, ada, tmp_path):
    build = ada.model_copy(update={"profile": Profile(batch=Range(min=1, opt=8, max=16))})
    sizes = {}
    for name in PRECISIONS:
        record = make(resnet[name], build, tmp_path / name, name)
        assert [spec.shape for spec in record.interface.inputs] == [("batch", 3, 64, 64)]
        assert [(spec.dtype, spec.shape) for spec in record.interface.outputs] == [("float32", ("batch", 10))]
        sizes[name] = record.bytes
        (tmp_path / name / "engine.plan").unlink()
    assert sizes["fp32"] > 32e6  # eight million weights of four bytes
    for name, share in {"fp16": 0.5, "bf16": 0.5, "int8": 0.25, "fp8": 0.25}.items():
        assert sizes[name] < 1.2 * share * sizes["fp32"], name


@pytest.mark.parametrize("form", ["yolov8", "rtdetr"])
def test_boxes_are_chosen_in_the_graph_of_each_precision(form, ada, tmp_path):
    """NVIDIA's parser takes the graph, with NonMaxSuppression in float32 and outputs of fixed size. The builder for RTX
    has no kernel for that operator, as NVIDIA says of others whose output depends on the data; the rest it builds."""
    import tensorrt_rtx as trt

    source = small_detector(form)
    outputs = tuple(output.name for output in source.graph.output)
    how = BoxesParams(form=form, unit="shares", most=20, nms="graph")
    wanted = BoxesInGraph(outputs=outputs, how=how, classes=4, size=(32, 32))
    save_graph(source, tmp_path / "plain.onnx")
    for name, path in written_in(tmp_path, tmp_path / "plain.onnx", {name: TYPED[name] for name in PRECISIONS}).items():
        save_graph(choose_in_graph(load_graph(path), wanted), path)
        network = trt.Builder(log := trt.Logger(trt.Logger.ERROR)).create_network(1)
        parser = trt.OnnxParser(network, log)
        assert parser.parse_from_file(str(path)), (name, parser.get_error(0).desc())
        outputs = [network.get_output(number) for number in range(network.num_outputs)]
        assert [(each.name, each.dtype, tuple(each.shape)[1:]) for each in outputs] == [
            ("boxes", trt.float32, (20, 4)), ("scores", trt.float32, (20,)), ("classes", trt.float32, (20,)),
            ("count", trt.float32, (1,)),
        ], name  # fmt: skip
        layers = [network.get_layer(number) for number in range(network.num_layers)]
        suppressing = [layer for layer in layers if layer.type == trt.LayerType.NMS]
        assert [[each.get_input(at).dtype for at in (0, 1)] for each in suppressing] == (
            [] if form == "rtdetr" else [[trt.float32, trt.float32]]
        ), name
        (tmp_path / name).mkdir()
        compile_it = partial(load_runtime("tensorrt_rtx").compile, path, read_blueprint(path, ada), tmp_path / name)
        if suppressing:
            assert "has no kernel for it: end the model before it" in refusal(compile_it)
        else:
            compile_it()


def test_polygraphys_own_loaders_accept_every_precision_and_find_it_inside(typed):
    """This is a second opinion. Its process is separate, since Polygraphy chooses the library when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", POLYGRAPHY, json.dumps({name: str(path) for name, path in typed.items()})],
        env=os.environ | {"POLYGRAPHY_USE_TENSORRT_RTX": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert all(entry["bytes"] > 100_000 for entry in found.values())
    assert {name: (entry["convolutions"], entry["quantized"]) for name, entry in found.items()} == {
        "fp32": (["FLOAT", "FLOAT"], []),
        "fp16": (["HALF", "HALF"], []),
        "bf16": (["BF16", "BF16"], []),
        "int8": (["HALF", "HALF"], ["INT8"]),
        "int8 beside fp32": (["FLOAT", "FLOAT"], ["INT8"]),
        "fp8": (["HALF", "HALF"], ["FP8"]),
        "fp8 beside fp32": (["FLOAT", "FLOAT"], ["FP8"]),
    }


# The record.


def test_an_engine_for_rtx_is_bound_to_no_gpu_but_to_its_capabilities(built, ada):
    record = EngineRecord.read(built["int8"] / "engine.json")
    assert record.target.runtime == "tensorrt_rtx"
    assert record.target.runtime_version == load_runtime("tensorrt_rtx").version()
    assert record.target.capabilities == ("8.9", "12.0") == ada.tensorrt.compute_capabilities
    assert (record.target.device_name, record.target.cores) == (None, None)
    assert record.build == ada


def test_the_layers_of_an_engine_are_not_claimed_where_it_cannot_run(built):
    record = EngineRecord.read(built["int8"] / "engine.json")
    assert record.layers == ()
    assert record.executed == {}


def test_a_gpu_that_the_engine_is_not_for_does_not_stop_the_build(tiny_onnx, make, ada, tmp_path, monkeypatch):
    """Its layers cannot be inspected there either."""
    monkeypatch.setattr(tensorrt, "find_gpu", lambda: Hardware("NVIDIA H200", "9.0", "580.65", "13.0"))
    assert make(tiny_onnx, ada, tmp_path / "fp32").layers == ()


def test_a_script_for_nvidias_own_command_lies_beside_the_engine(built, typed):
    script = built["int8"] / "reproduce.sh"
    assert sorted(path.name for path in built["int8"].iterdir()) == ["engine.json", "engine.plan", "reproduce.sh"]
    subprocess.run(["bash", "-n", script], check=True)
    (onnx_flag,) = [word for word in script.read_text().split() if word.startswith("--onnx=")]
    assert (built["int8"] / onnx_flag.removeprefix("--onnx=")).resolve() == typed["int8"].resolve()


def with_plugin(build, library):
    return build.model_copy(update={"tensorrt": build.tensorrt.model_copy(update={"plugins": (str(library),)})})


def test_a_library_of_plugins_lies_beside_the_engine_and_one_that_is_not_named_is_not_opened(
    tiny_onnx, make, ada, tmp_path
):
    library, other = (plugin_library(tmp_path / name, "registers nothing") for name in ("own.so", "other.so"))
    record = make(tiny_onnx, with_plugin(ada, library), tmp_path / "fp32")
    assert record.files["own.so"] == sha256(library)
    opened = Path("/proc/self/maps").read_text()
    assert "/own.so" in opened
    assert other.exists()
    assert "/other.so" not in opened


# Graphs and parameters that TensorRT or Enginewright refuses.


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("needs another library", "does not load: "),
        ("hands out nothing", "is refused by TensorRT for RTX: IPluginRegistry::loadLibrary: Error Code 4: "),
    ],
)
def test_a_library_of_plugins_that_does_not_load_is_a_sentence(
    tiny_onnx, make, ada, tmp_path, kind, wanted, monkeypatch
):
    build_apart(monkeypatch)  # such a library may end the process
    chosen = with_plugin(ada, plugin_library(tmp_path / "own.so", kind))
    sentence = refusal(make, tiny_onnx, chosen, tmp_path / "out" / "fp32")
    assert sentence.startswith(f"the plugin library own.so (build.tensorrt.plugins) {wanted}")
    assert list((tmp_path / "out").iterdir()) == []


def two_sizes(tmp_path):
    """Write a graph that reshapes its input, and so takes only batch sizes that are multiples of four."""
    fours = numpy_helper.from_array(np.array([4, -1, 3], np.int64), "to fours")
    flat = numpy_helper.from_array(np.array([-1, 3], np.int64), "to flat")
    return operator_graph(
        tmp_path / "in" / "model.onnx",
        [
            (("Reshape", ["input", "to fours"], ["grouped"], "fours"), {}),
            (("Reshape", ["grouped", "to flat"], ["logits"], "flat"), {}),
        ],
        output=(TensorProto.FLOAT, ["batch", 3]),
        constants=[fours, flat],
    )


def test_a_batch_size_that_the_graph_cannot_take_is_named_with_its_node(make, build, tmp_path):
    onnx_file = two_sizes(tmp_path)
    chosen = build.model_copy(update={"profile": Profile(batch=Range(min=4, opt=6, max=8))})
    sentence = refusal(make, onnx_file, chosen, tmp_path / "out" / "fp32")
    assert sentence.startswith(f"TensorRT for RTX cannot build {onnx_file}: ")
    for part in ("kOPT", "fours", "reshaping failed for tensor: input"):
        assert part in sentence
    assert list((tmp_path / "out").iterdir()) == []
    fitting = build.model_copy(update={"profile": Profile(batch=Range(min=4, opt=4, max=8))})
    make(onnx_file, fitting, tmp_path / "out" / "fp32")


def test_a_profile_that_tensorrt_refuses_is_named_with_its_limits(tiny_onnx, make, build, tmp_path):
    """The parameters are made without their own check of the order."""
    chosen = build.model_copy(
        update={"profile": Profile.model_construct(batch=Range.model_construct(min=8, opt=4, max=2))}
    )
    sentence = refusal(make, tiny_onnx, chosen, tmp_path / "out" / "fp32")
    assert sentence.startswith("TensorRT for RTX refuses build.profile batch 8 to 2: ")
    assert "MIN<=OPT<=MAX" in sentence
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("nodes", "output", "constants", "wanted"),
    [
        (
            [(("Twist", ["input"], ["logits"], "strange"), {"domain": "my.domain"})],
            IMAGE,
            [],
            ("node strange (Twist): ", "Plugin not found"),
        ),
        (
            [(("Add", ["input", "half"], ["logits"], "mixed"), {})],
            IMAGE,
            [numpy_helper.from_array(np.ones(3, np.float16), "half")],
            ("node mixed (Add): ", "must have same input types. But they are of types Float and Half"),
        ),
        (
            [
                (("NonZero", ["input"], ["places"], "found"), {}),
                (("Transpose", ["places"], ["rows"], "rows"), {}),
                (("Cast", ["rows"], ["logits"], "cast"), {"to": TensorProto.FLOAT}),
            ],
            (TensorProto.FLOAT, ["batch", 3]),
            [],
            ("node found (NonZero): this operator is not supported", "NonZero plugin creator version 1 was not found"),
        ),
        (
            [(("Relu", ["input"], ["x"], "first"), {}), (("Det", ["x"], ["logits"], "second"), {})],
            (TensorProto.FLOAT, ["batch"]),
            [],
            ("node second (Det): ", "not supported"),
        ),
    ],
    ids=[
        "operator of another domain",
        "two types in one operator",
        "operator that RTX lacks",
        "operator that TensorRT lacks",
    ],
)
def test_a_graph_that_cannot_be_read_is_named_with_its_node(make, build, tmp_path, nodes, output, constants, wanted):
    onnx_file = operator_graph(tmp_path / "in" / "model.onnx", nodes, [("input", *IMAGE)], output, constants)
    sentence = refusal(make, onnx_file, build, tmp_path / "out" / "fp32")
    assert sentence.startswith(f"TensorRT for RTX cannot read {onnx_file}: ")
    for part in wanted:
        assert part in sentence
    assert ".cpp" not in sentence
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("tensor", "wanted"),
    [
        ((TensorProto.INT64, ["batch", 3]), "output logits is int64 and must be one of float32, float16, float64"),
        ((TensorProto.STRING, ["batch", 3]), "input input holds no numbers"),
        (
            (TensorProto.FLOAT, [4, 3]),
            "the batch of input input is fixed at 4, and build.profile.batch asks for 2 to 8",
        ),
        (
            (TensorProto.FLOAT, ["batch", 3, "height"]),
            "input input has a dynamic size 'height' at axis 2: only batch may vary, as build.profile has it",
        ),
        ((TensorProto.FLOAT, []), "the batch of input input: it is a single number, and has none"),
    ],
    ids=["int64", "string", "static batch", "dynamic height", "scalar"],
)
def test_a_graph_that_cannot_be_fed_samples_is_refused_by_its_tensor(make, build, tmp_path, tensor, wanted):
    onnx_file = operator_graph(
        tmp_path / "in" / "model.onnx",
        [(("Identity", ["input"], ["logits"], "same"), {})],
        [("input", *tensor)],
        tensor,
    )
    sentence = refusal(make, onnx_file, build, tmp_path / "out" / "fp32")
    assert sentence.startswith(str(onnx_file))
    assert wanted in sentence
    assert not (tmp_path / "out").exists()


def test_an_output_whose_size_follows_from_values_is_built(make, ada, chosen_onnx, tmp_path):
    record = make(chosen_onnx, ada, tmp_path / "fp32")
    assert [spec.shape for spec in record.interface.outputs] == [("batch", 6), ("batch", "count")]
    assert record.bytes > 1000


def test_an_input_whose_values_decide_shapes_is_built(make, ada, sized_onnx, sized_build, tmp_path, monkeypatch):
    """NVIDIA's parser finds the same inputs, and its builder takes a range for each value, and asks for one."""
    trt = importlib.import_module("tensorrt_rtx")
    log = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(log).create_network()
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(str(sized_onnx))
    inputs = map(network.get_input, range(network.num_inputs))
    assert {each.name: each.is_shape_tensor for each in inputs} == {"image": False, "sizes": True}
    chosen = ada.model_copy(update={"profile": sized_build.profile})
    record = make(sized_onnx, chosen, tmp_path / "fp32")
    assert [spec.values for spec in record.interface.inputs] == [(), ("rows", "columns")]
    assert record.bytes > 1000
    monkeypatch.setattr(trt.IOptimizationProfile, "set_shape_input", lambda *given: None)
    sentence = refusal(make, sized_onnx, chosen, tmp_path / "out" / "fp32")
    assert "Optimization profile 0 is missing values for shape input tensor sizes" in sentence


def test_a_static_batch_is_built_where_the_profile_asks_for_just_it(make, build, tmp_path):
    onnx_file = operator_graph(
        tmp_path / "in" / "model.onnx",
        [(("Relu", ["input"], ["logits"], "relu"), {})],
        [("input", TensorProto.FLOAT, [4, 3])],
        (TensorProto.FLOAT, [4, 3]),
    )
    just_it = build.model_copy(update={"profile": Profile(batch=Range(min=4, opt=4, max=4))})
    record = make(onnx_file, just_it, tmp_path / "fp32")
    assert [spec.shape for spec in (*record.interface.inputs, *record.interface.outputs)] == [(4, 3), (4, 3)]


def test_an_output_that_is_not_float_is_refused_by_name(make, build, tmp_path):
    onnx_file = operator_graph(
        tmp_path / "in" / "model.onnx",
        [(("Cast", ["input"], ["logits"], "cast"), {"to": TensorProto.BFLOAT16})],
        output=(TensorProto.BFLOAT16, ["batch", 3]),
    )
    sentence = refusal(make, onnx_file, build, tmp_path / "out" / "bf16")
    words = "output logits is bfloat16 and must be one of float32, float16, float64, to be held against PyTorch"
    assert sentence == f"{onnx_file}: {words}"
    assert not (tmp_path / "out").exists()


def test_inputs_of_other_types_are_built_beside_images(make, build, tmp_path):
    """Each sample has features, numbers, halves and a mask."""
    onnx_file = operator_graph(
        tmp_path / "in" / "model.onnx",
        [
            (("Cast", ["number"], ["numbers"], "of numbers"), {"to": TensorProto.FLOAT}),
            (("Cast", ["half"], ["halves"], "of halves"), {"to": TensorProto.FLOAT}),
            (("Add", ["numbers", "halves"], ["sum"], "sum"), {}),
            (("Where", ["mask", "sum", "input"], ["logits"], "choice"), {}),
        ],
        [
            ("input", TensorProto.FLOAT, ["batch", 3]),
            ("number", TensorProto.INT64, ["batch", 3]),
            ("half", TensorProto.FLOAT16, ["batch", 3]),
            ("mask", TensorProto.BOOL, ["batch", 3]),
        ],
    )
    record = make(onnx_file, build, tmp_path / "fp32")
    assert {spec.name: spec.dtype for spec in record.interface.inputs} == {
        "input": "float32",
        "number": "int64",
        "half": "float16",
        "mask": "bool",
    }
    assert "--minShapes=input:2x3,number:2x3,half:2x3,mask:2x3" in (tmp_path / "fp32" / "reproduce.sh").read_text()


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_a_truncated_graph_is_refused(tiny_onnx, make, build, tmp_path, share):
    content = tiny_onnx.read_bytes()
    (tmp_path / "model.onnx").write_bytes(content[: int(len(content) * share)])
    sentence = refusal(make, tmp_path / "model.onnx", build, tmp_path / "out" / "fp32")
    assert f"{tmp_path / 'model.onnx'} is not a valid ONNX file" in sentence
    assert not (tmp_path / "out").exists()


def test_an_engine_given_as_a_graph_is_refused_as_what_it_is(built, make, build, tmp_path):
    plan = built["fp32"] / "engine.plan"
    sentence = refusal(make, plan, build, tmp_path / "out" / "fp32")
    assert sentence == f"{plan} is a TensorRT engine, and an ONNX file is expected"
    assert not (tmp_path / "out").exists()


def test_a_build_that_fails_leaves_the_earlier_engine(typed, make, ada, build, tmp_path):
    make(typed["fp8"], ada, tmp_path / "out" / "fp8", "fp8")
    before = contents(tmp_path / "out" / "fp8")
    refusal(make, typed["fp8"], for_gpus(build, "8.6"), tmp_path / "out" / "fp8", "fp8")
    assert contents(tmp_path / "out" / "fp8") == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["fp8"]


# Loading.


def contents(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_without_a_gpu_an_engine_stays_as_it_is_and_says_what_it_needs(
    tiny_onnx, make, build, machine, inference, tmp_path
):
    folder = tmp_path / "fp32"
    make(tiny_onnx, build, folder)
    before = contents(folder)
    assert refusal(open_engine, folder, machine, inference) == (
        f"{folder} needs a GPU of compute capability 8.6, 8.9 or 12.0, and this machine shows none. "
        "It stays as it is: run `dvc repro` on a machine with one"
    )
    assert contents(folder) == before


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [lambda plan, _: plan[:-1], lambda plan, _: flipped(plan), lambda *_: b"", lambda _, graph: graph],
    ids=["truncated", "one bit flipped", "empty", "an ONNX file"],
)
@pytest.mark.parametrize("capability", ["", "8.9"], ids=["without a GPU", "with a GPU"])
def test_a_damaged_plan_is_refused_before_tensorrt_sees_it(
    tiny_onnx, make, build, machine, inference, tmp_path, monkeypatch, damage, capability
):
    make(tiny_onnx, build, tmp_path / "fp32")
    plan = tmp_path / "fp32" / "engine.plan"
    plan.write_bytes(damage(plan.read_bytes(), tiny_onnx.read_bytes()))
    monkeypatch.setattr(tensorrt.TensorRT, "load", lambda *given: pytest.fail("the plan was deserialized"))
    here = machine.model_copy(update={"capability": capability})
    sentence = refusal(open_engine, tmp_path / "fp32", here, inference)
    assert sentence.startswith(f"{plan} is damaged: its hash differs from the one in engine.json. Run `dvc repro`")


def test_the_calls_that_only_running_needs_exist():
    """No engine runs here, so these calls are looked up in the real module."""
    tensorrt_rtx = importlib.import_module("tensorrt_rtx")
    runtime_config = {"cuda_graph_strategy", "dynamic_shapes_kernel_specialization_strategy"}
    assert runtime_config <= set(dir(tensorrt_rtx.IRuntimeConfig))
    assert {"WHOLE_GRAPH_CAPTURE"} <= set(tensorrt_rtx.CudaGraphStrategy.__members__)
    assert {"EAGER"} <= set(tensorrt_rtx.DynamicShapesKernelSpecializationStrategy.__members__)
    assert "create_runtime_config" in dir(tensorrt_rtx.ICudaEngine)
    assert "runtime_config: tensorrt_rtx" in tensorrt_rtx.ICudaEngine.create_execution_context.__doc__
    running = {"set_input_shape", "get_tensor_shape", "set_tensor_address", "execute_async_v3"}
    assert running <= set(dir(tensorrt_rtx.IExecutionContext))

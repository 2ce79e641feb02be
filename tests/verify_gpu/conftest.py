"""The checks that need an NVIDIA GPU: `make verify-gpu` runs them and stops at the first failure.

They verify the runtime that `runtime: auto` chooses, which is TensorRT where it is installed, or the runtime that
ENGINEWRIGHT_RUNTIME names. Their files are called verify_*.py, so that pytest runs them only where they are named.
"""

import os
from contextlib import nullcontext

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from PIL import Image
from support.builds import building_here
from support.gpu import KEEP, LIMITS, is_for

from enginewright.core.params.build import Range
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.cast import cast
from enginewright.precision.islands import nodes_to_part, with_barriers
from enginewright.precision.quantize import quantize


@pytest.fixture(scope="session", autouse=True)
def built_here():
    """Build on a simulated GPU in this process."""
    with building_here() if "SIMULATED_TENSORRT" in os.environ else nullcontext():
        yield


@pytest.fixture(scope="session")
def machine():
    here = describe_machine(os.environ.get("ENGINEWRIGHT_RUNTIME", "auto"))
    if here.device != "cuda" or not here.capability:
        pytest.exit(f"no GPU to verify: the runtime here is {here.runtime} on {here.device_name}", returncode=1)
    print(f"\n{here.runtime} {here.runtime_version} on {here.device_name}, driver {here.driver}, CUDA {here.cuda}")
    return here


@pytest.fixture(scope="session")
def wide_onnx(tiny_graph, tmp_path_factory):
    """The tiny classifier with more weights than its plan has kernels: else that plan keeps them where it need not."""
    model, random = onnx.ModelProto.FromString(tiny_graph.SerializeToString()), np.random.default_rng(8)
    *_, classifier = model.graph.node
    more = {"w4": random.normal(0, 0.3, (16384, 32)), "w3": random.normal(0, 0.01, (16, 16384))}
    old = next(tensor for tensor in model.graph.initializer if tensor.name == "w3")
    model.graph.initializer.remove(old)
    for name, weights in more.items():
        model.graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32), name))
    wide = helper.make_node("Gemm", ["features", "w4"], ["wide"], "wide", transB=1)
    relu = helper.make_node("Relu", ["wide"], ["relu_3"], "relu3")
    classifier.input[0] = "relu_3"
    for node in (wide, relu):
        model.graph.node.insert(len(model.graph.node) - 1, node)
    path = tmp_path_factory.mktemp("wide") / "model.onnx"
    save_graph(model, path)
    return path


@pytest.fixture(scope="session")
def graphs(wide_onnx, tmp_path_factory):
    """The classifier in each precision."""
    folder = tmp_path_factory.mktemp("graphs")
    ranges = dict.fromkeys(["input", *(name for node in load_graph(wide_onnx).graph.node for name in node.output)], 8.0)
    made = {"fp32": load_graph(wide_onnx)}
    made |= {name: cast(wide_onnx, name, KEEP) for name in ("fp16", "bf16")}
    made["int8"] = quantize(wide_onnx, "int8", ranges, KEEP, rest="fp32")
    for name, graph in made.items():
        save_graph(graph, folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in made}


@pytest.fixture(scope="session")
def build(build):
    """Let all but `engines` be built in a fraction of the time, as their speed is of no interest."""
    fast = build.tensorrt.model_copy(update={"optimization_level": 2, "avg_timing_iterations": 1})
    return build.model_copy(update={"tensorrt": fast})


@pytest.fixture(scope="session")
def exact(build):
    return build.model_copy(update={"tf32": False})


@pytest.fixture(scope="session")
def engines(graphs, machine, build, manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    options = build.tensorrt.model_copy(update={"optimization_level": 3, "avg_timing_iterations": 8})  # as by default
    as_by_default = build.model_copy(update={"tf32": False, "tensorrt": options})
    for name in filter(lambda name: is_for(machine, name), graphs):
        build_engine(
            DescribedGraph(name, graphs[name], manifest), target_of(machine, options), as_by_default, folder / name
        )
    return folder


@pytest.fixture(scope="session")
def build_once(machine, manifest, tmp_path_factory):
    """Build an engine for the first test that asks for it by name."""
    folder = tmp_path_factory.mktemp("once")

    def build(name, precision, onnx, params):
        if not (folder / name).exists():
            build_engine(
                DescribedGraph(precision, onnx, manifest), target_of(machine, params.tensorrt), params, folder / name
            )
        return folder / name

    return build


@pytest.fixture(params=LIMITS)
def precision(request, machine):
    if not is_for(machine, request.param):
        pytest.skip(f"a GPU of compute capability {machine.capability} does not have {request.param}")
    return request.param


@pytest.fixture
def images():
    return np.random.default_rng(3).normal(0, 1, (8, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def built_with(graphs, machine, exact, manifest, tmp_path):
    """Make engines with options that only TensorRT has."""
    if machine.runtime == "onnxruntime":
        pytest.skip("ONNX Runtime has no such engines")

    def build(name, precision, **options):
        chosen = exact.model_copy(update={"tensorrt": exact.tensorrt.model_copy(update=options)})
        target = target_of(machine, chosen.tensorrt)
        record = build_engine(DescribedGraph(precision, graphs[precision], manifest), target, chosen, tmp_path / name)
        return record, tmp_path / name

    return build


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Images of several sizes, with a tint of their own."""
    folder, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(11)
    for number in range(6):
        tint, noise = random.integers(0, 256, 3), random.integers(0, 256, (20 + 3 * number, 31, 3))
        Image.fromarray((noise // 2 + tint // 2).astype(np.uint8)).save(folder / f"{number}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def parted(graphs, tmp_path_factory):
    """The graphs with a barrier behind each node whose results are numbers."""
    folder = tmp_path_factory.mktemp("parted")
    for name, path in graphs.items():
        graph = load_graph(path)
        save_graph(with_barriers(graph, nodes_to_part(graph).values()), folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in graphs}


@pytest.fixture(scope="session")
def more_engines(engines, graphs, parted, machine, exact, build_once):
    """Engines of the tiny classifier in fp32 with options that only TensorRT has, each built when it is asked for."""
    if machine.runtime != "tensorrt":
        pytest.skip(f"{machine.runtime} has no such engines")
    of_two = {"batch": Range(min=2, opt=2, max=2)}
    options = {
        "several profiles": ({}, {"profiles": (of_two,)}),
        "stripped": ({"weights": "stripped"}, {}),
        "refittable": ({"refit": True}, {}),
        "with barriers": ({}, {}),
    }

    def find(name):
        if name == "plain":
            return engines / "fp32"
        of_tensorrt, others = options[name]
        tensorrt = exact.tensorrt.model_copy(update=of_tensorrt)
        build = exact.model_copy(update={"tensorrt": tensorrt, **others})
        return build_once(name, "fp32", (parted if name == "with barriers" else graphs)["fp32"], build)

    return find

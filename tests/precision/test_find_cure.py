"""What a compiler gets wrong is found, cured and priced. Here it is wrong on purpose, at places that nobody tells."""

import tempfile

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.pass_checks import model_of_text

from enginewright.core.errors import CompilerError, EnginewrightError
from enginewright.core.params.build import BenchmarkParams, InferenceParams, Profile, Range
from enginewright.engine.runtimes import describe_machine
from enginewright.engine.runtimes.onnxruntime import ONNXRuntime
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.cure import Change
from enginewright.precision.find_cure import Trials, fewest, find_cure
from enginewright.precision.islands import layers_to_keep, with_island

WIDTH, LAYERS, LIMIT = 16, 12, 0.05
# The type of the graph; what the compiler makes of a node in that type; and at how many places.
FAULTS = [
    ("int8", "scaled", 1), ("int8", "no number", 1), ("int8", "at large batches", 1), ("int8", "refused", 1),
    ("int8", "scaled", 3), ("int8", "with its follower", 1), ("fp16", "scaled", 1), ("fp16", "no number", 2),
    ("fp16", "at large batches", 1), ("fp16", "with its follower", 1),
]  # fmt: skip


def graph_in(precision, random):
    """Return products with weights one after the other, which an island must find its way around in."""
    constants, nodes, value = {}, "", "x" if precision == "int8" else "h"
    for layer in range(LAYERS):
        constants[f"w{layer}"] = random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        weights, read = f"w{layer}", value
        if precision == "int8":
            constants[weights] = np.clip(np.rint(constants[weights] * 40), -127, 127).astype(np.int8)
            nodes += f"q{layer} = QuantizeLinear ({value}, s, z) r{layer} = DequantizeLinear (q{layer}, s, z) "
            nodes += f"k{layer} = DequantizeLinear ({weights}, ws, z) "
            weights, read = f"k{layer}", f"r{layer}"
        else:
            constants[weights] = constants[weights].astype(np.float16)
        nodes += f"m{layer} = MatMul ({read}, {weights}) t{layer} = Tanh (m{layer}) "
        value = f"t{layer}"
    if precision == "int8":
        constants |= {"s": np.float32(0.02), "ws": np.float32(0.025), "z": np.int8(0)}
    ends = (
        ("", f"y = Neg ({value})")
        if precision == "int8"
        else ("h = Cast <to = 10> (x) ", f"y = Cast <to = 1> ({value})")
    )
    text = f"g (float[batch,{WIDTH}] x) => (float[batch,{WIDTH}] y) {{ {ends[0]}{nodes}{ends[1]} }}"
    model = model_of_text(text, constants)
    for node in model.graph.node:
        node.name = f"node.{node.output[0]}"
    return model


def spoiled(model, places, how):
    """Return the graph as a compiler computes it that is wrong about products at these places in bytes or 16 bits."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {each.name: each.type.tensor_type.elem_type for each in graph.value_info}
    makers = {name: node for node in graph.node for name in node.output}
    readers = {name: node for node in graph.node for name in node.input}

    def is_low(node):
        made = makers.get(node.input[0])
        return types.get(node.output[0]) == TensorProto.FLOAT16 or (made and made.op_type == "DequantizeLinear")

    def is_hit(node):
        follower = readers.get(node.output[0])
        while how == "with its follower" and follower is not None and follower.op_type != "MatMul":
            follower = readers.get(follower.output[0])
        return node.name in places and is_low(node) and (follower is None or how[0] != "w" or is_low(follower))

    nodes, wrong = [], onnx.ModelProto()
    wrong.CopyFrom(model)
    for node in wrong.graph.node:
        nodes.append(node)
        if not is_hit(node):
            continue
        if how == "refused":
            raise CompilerError("it has no kernel")
        dtype = helper.tensor_dtype_to_np_dtype(types[node.output[0]])
        name = node.output[0]
        constants = {f"{name}.times": np.array(np.nan if how == "no number" else 1.6, dtype)}
        node.output[0], factor = f"{name}.right", f"{name}.times"
        if how == "at large batches":
            constants |= {
                f"{name}.few": np.array([4]),
                f"{name}.one": np.array(1, dtype),
                f"{name}.axis": np.array([0]),
            }
            nodes += [
                helper.make_node("Shape", ["x"], [f"{name}.size"], start=0, end=1),
                helper.make_node("Greater", [f"{name}.size", f"{name}.few"], [f"{name}.many"]),
                helper.make_node("Where", [f"{name}.many", factor, f"{name}.one"], [f"{name}.factor"]),
            ]
            factor = f"{name}.factor"
        nodes.append(helper.make_node("Mul", [f"{name}.right", factor], [name]))
        wrong.graph.initializer.extend(numpy_helper.from_array(array, each) for each, array in constants.items())
    del wrong.graph.node[:]
    wrong.graph.node.extend(nodes)
    return wrong


@pytest.fixture
def trials(build, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its machine's lock is not that of other tests
    random, sized = (
        np.random.default_rng(1),
        build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=4, max=8))}),
    )
    feeds = [{"x": random.normal(size=(size, WIDTH)).astype(np.float32)} for size in (4, 8, 3, 1)]
    return Trials(describe_machine("onnxruntime"), sized, InferenceParams(threads=1), feeds, LIMIT, 100)


@pytest.fixture
def compiler(monkeypatch):
    """Return what makes ONNX Runtime wrong."""
    compile = ONNXRuntime.compile

    def be_wrong(places, how):
        def compile_wrongly(self, path, blueprint, folder):
            save_graph(spoiled(load_graph(path), places, how), folder / "wrong.onnx")
            return compile(self, folder / "wrong.onnx", blueprint, folder)

        monkeypatch.setattr(ONNXRuntime, "compile", compile_wrongly)

    return be_wrong


def found_for(model, trials, folder):
    try:
        trials.compile(model, Change(), folder)
        engine = folder
    except CompilerError:
        engine = None
    trials.builds = 0
    return find_cure("int8", engine, folder / "model.onnx", trials, BenchmarkParams(seconds=0.02))


@pytest.mark.parametrize(
    ("number", "fault"), list(enumerate(FAULTS)), ids=[" ".join(map(str, fault)) for fault in FAULTS]
)
def test_a_planted_fault_is_found_cured_and_priced(number, fault, trials, compiler, tmp_path):
    (precision, how, count), random = fault, np.random.default_rng(number)
    model = graph_in(precision, random)
    products = [node.name for node in model.graph.node if node.op_type == "MatMul"][:-1]
    places = {str(name) for name in random.choice(products, count, replace=False)}
    compiler(places, how)
    cure = found_for(model, trials, tmp_path)
    assert cure is not None
    assert cure.error_cured <= LIMIT < (cure.error or np.inf)
    assert set(cure.change.nodes) == places or (how == "with its follower" and len(cure.change.nodes) == 1)
    assert cure.refused == (how == "refused") == (cure.price is None)
    assert cure.price is None or 0 < cure.price.speed[1] <= cure.price.speed[0] <= cure.price.speed[2]
    assert cure.builds < 60


def test_an_engine_that_is_right_costs_no_build(trials, tmp_path):
    assert found_for(graph_in("int8", np.random.default_rng(0)), trials, tmp_path) is None
    assert trials.builds == 0


def test_what_no_island_cures_and_what_takes_too_long_is_said(trials, compiler, tmp_path, monkeypatch):
    model = graph_in("int8", np.random.default_rng(0))
    monkeypatch.setattr("enginewright.precision.islands.layers_to_keep", lambda model, in_float32: [])
    monkeypatch.setattr("enginewright.precision.find_cure.layers_to_keep", lambda model, in_float32: ["node.t0"])
    compiler({"node.m3"}, "scaled")
    with pytest.raises(EnginewrightError, match="stays wrong with all of its layers in high precision"):
        found_for(model, trials, tmp_path)
    trials.seconds = -1.0
    with pytest.raises(EnginewrightError, match="seconds were over after 0 builds"):
        found_for(model, trials, tmp_path)


@pytest.mark.parametrize("needed", [{3}, {0, 19}, {1, 2, 11}, set(range(20))])
def test_the_fewest_that_are_enough_are_all_that_are_needed(needed):
    assert set(fewest(range(20), lambda kept: needed <= set(kept))) == needed


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_an_island_of_all_layers_hands_on_nothing_in_low_precision(precision):
    model = graph_in(precision, np.random.default_rng(0))
    island = with_island(model, layers_to_keep(model, in_float32=True), in_float32=True)
    types = {
        each.name: each.type.tensor_type.elem_type
        for each in onnx.shape_inference.infer_shapes(island).graph.value_info
    }
    read = [types[name] for node in island.graph.node if node.op_type == "Tanh" for name in (*node.input, *node.output)]
    assert set(read) == {TensorProto.FLOAT}
    assert not any("Linear" in node.op_type for node in island.graph.node)

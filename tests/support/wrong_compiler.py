"""Make ONNX Runtime's compiler wrong on purpose, about nodes in bytes or in 16 bits."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from enginewright.core.errors import CompilerError
from enginewright.engine.runtimes.onnxruntime import ONNXRuntime
from enginewright.graph.interface import APART
from enginewright.graph.onnx_file import load_graph, save_graph
from support.paths import ROOT


def be_wrong(monkeypatch, places, how):
    """Let it compile a graph that differs from the one given at these nodes, as long as they are in low precision."""
    compile = ONNXRuntime.compile

    def compile_wrongly(self, path, blueprint, folder):
        save_graph(spoiled(load_graph(path), places, how), folder / "wrong.onnx")
        return compile(self, folder / "wrong.onnx", blueprint, folder)

    monkeypatch.setattr(ONNXRuntime, "compile", compile_wrongly)


SITE = """\
import sys
sys.path.insert(0, {tests!r})
from pytest import MonkeyPatch
from support.wrong_compiler import be_wrong
be_wrong(MonkeyPatch(), [{node!r}], "scaled")
"""


def wrong_python(python, home, node):
    """Write a program that is this Python, whose ONNX Runtime is wrong about a node in int8."""
    (home / "sitecustomize.py").write_text(SITE.format(tests=str(ROOT / "tests"), node=node))
    program = home / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{home}:$PYTHONPATH" exec {python} "$@"\n')
    program.chmod(0o755)
    return program


def spoiled(model, places, how):
    """Return the graph as a compiler computes it that is wrong about products at these places in bytes or 16 bits."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    apart = {name for each in model.metadata_props if each.key == APART for name in each.value.split()}
    types = {each.name: each.type.tensor_type.elem_type for each in (*graph.value_info, *graph.output)}
    makers = {name: node for node in graph.node for name in node.output}
    readers = {name: node for node in graph.node for name in node.input}

    def is_low(node):
        made = makers.get(node.input[0])
        return types.get(node.output[0]) == TensorProto.FLOAT16 or (made and made.op_type == "DequantizeLinear")

    def is_hit(node):
        follower = readers.get(node.output[0])
        while how == "with its follower" and follower is not None and follower.op_type != "MatMul":
            follower = readers.get(follower.output[0])
        if how == "fused" and node.output[0] in apart:
            return False
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

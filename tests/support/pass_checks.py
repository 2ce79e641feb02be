"""Make and run small graphs, apply a pass to them, and check what every pass must keep."""

import logging
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

BODIES = ("If", "Loop", "Scan")


def model_of_text(graph, constants=(), functions="", opset=20):
    """Return a model with inferred shapes of a graph in ONNX's text format, with `constants` as its initializers."""
    header = f'<ir_version: 10, opset_import: ["": {opset}, "local": 1, "com.microsoft": 1]>\n'
    model = onnx.parser.parse_model(header + graph + functions)
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()]
    model.graph.initializer.extend(tensors)
    typed = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(typed, full_check=True)
    return typed


def renamed(model, names):
    """Return the model with other names for tensors, which may have dots and colons, unlike in the text format."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for named in (*model.graph.value_info, *model.graph.initializer):
        named.name = names.get(named.name, named.name)
    return model


def model_with_body(kind, nodes, shape, constants=()):
    """Put nodes that read `x` and make `r` into both branches of an If, or into the body of a Loop or a Scan.

    The branches and the body of the Loop read `x` from the graph around them. The body of the Scan has it as an input.
    """
    size = ",".join(map(str, ("batch", *shape)))
    main = {
        "If": f"""
            x = Identity (input)
            zero = Constant <value_float = 0.0> ()
            total = ReduceSum <keepdims = 0> (x)
            positive = Greater (total, zero)
            y = If (positive) <
                then_branch = chosen () => (float[] r) {{ {nodes} }},
                else_branch = other () => (float[] s) {{ {nodes} s = Neg (r) }}
            >""",
        "Loop": f"""
            x = Identity (input)
            trips = Constant <value_int = 2> ()
            y = Loop (trips, "") <
                body = step (int64 i, bool before) => (bool after, float[] r) {{ after = Identity (before) {nodes} }}
            >""",
        "Scan": f"""
            first = Constant <value_ints = [0]> ()
            stacked = Unsqueeze (input, first)
            y = Scan <num_scan_inputs = 1, body = step (float[{size}] x) => (float[] r) {{ {nodes} }}> (stacked)""",
    }[kind]
    return model_of_text(f"main (float[{size}] input) => (float[] y) {{ {main} }}", constants)


def apply_pass(graph_pass, model, batches=(5, 1)):
    """Return the model after a pass, which must compute the same, and tell truly whether it changed anything."""
    read = ir.from_proto(onnx.ModelProto.FromString(model.SerializeToString()))
    unchanged = round_trip(model).SerializeToString()
    modified = graph_pass(read)
    after = ir.to_proto(read)
    assert modified == (after.SerializeToString() != unchanged)
    assert not graph_pass(read)
    require_same_results(model, after, batches)
    return after


def round_trip(model):
    """Return the model as onnx_ir reads and writes it."""
    return ir.to_proto(ir.from_proto(model))


def require_same_results(before, after, batches=(5, 1)):
    onnx.checker.check_model(after, full_check=True)
    require_unique_names(after.graph, set())
    assert list(after.graph.input) == list(before.graph.input)
    assert [output.name for output in after.graph.output] == [output.name for output in before.graph.output]
    for batch in batches:
        for sign in (1, -1):  # for both branches of an If
            wanted, got = output_of(before, batch, sign), output_of(after, batch, sign)
            assert got.shape == wanted.shape
            assert got == pytest.approx(wanted, abs=1e-6)


def require_unique_names(graph, outside):
    """Check that no tensor of a graph has the name of another in it or in the graphs around it."""
    held = [*(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)]
    names = Counter({*held}) + Counter(name for node in graph.node for name in node.output if name)
    assert set(names.values()) <= {1}
    assert not outside & set(names)
    for node in graph.node:
        for attribute in node.attribute:
            for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                require_unique_names(body, outside | set(names))


def output_of(model, batch, sign=1):
    return session_of(model).run(None, {"input": sign * random_input(model, batch)})[0]


def random_input(model, batch):
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim][1:]
    return np.random.default_rng(0).normal(0.5, 1, size=(batch, *shape)).astype(np.float32)


def autocast(model, precision, folder, keep=()):
    """Return the graph that ModelOpt's AutoCast makes, with operators of some types kept in float32."""
    from modelopt.onnx.autocast import convert_to_mixed_precision

    onnx.save(model, folder / "model.onnx")
    logging.disable(logging.WARNING)
    try:
        return convert_to_mixed_precision(
            str(folder / "model.onnx"),
            low_precision_type=precision,
            keep_io_types=True,
            op_types_to_exclude=list(keep),
            calibration_data={"input": random_input(model, 1)},
        )
    finally:
        logging.disable(logging.NOTSET)


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def all_nodes(model) -> Iterator[ir.Node]:
    """Yield the nodes of the graph, of the bodies in it, and of functions."""
    read = ir.from_proto(model)
    yield from read.graph.all_nodes()
    for function in read.functions.values():
        yield from function.all_nodes()


def count_types(model):
    return Counter(node.op_type for node in all_nodes(model))

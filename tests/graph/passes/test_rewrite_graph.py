"""All passes together, and the parts of the file around the graph."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.pass_checks import (
    BODIES,
    all_nodes,
    count_types,
    model_of_text,
    model_with_body,
    renamed,
    require_same_results,
    round_trip,
)

from enginewright.graph.passes import apply_passes, rewrite_graph
from enginewright.graph.passes.for_one_compiler import pad_before_pooling, spell_out_hard_swish

NODES = """
    sum_scale = Add (x, x)
    swish = HardSwish (sum_scale)
    padded = AveragePool <kernel_shape = [3, 3], pads = [1, 0, 1, 2], count_include_pad = 1> (swish)
    r = Einsum <equation = "bcAh,hw->bcAw"> (padded, w)
"""
WEIGHTS = {"w": np.random.default_rng(1).normal(0, 0.3, (8, 4)).astype(np.float32)}
REWRITTEN = {"Add": 1, "HardSigmoid": 1, "Mul": 1, "Pad": 1, "AveragePool": 1, "Einsum": 1}


def flat():
    return model_of_text(f"g (float[batch, 3, 9, 8] input) => (float[] r) {{ x = Neg (input) {NODES} }}", WEIGHTS)


def rewritten(model):
    before = model.SerializeToString()
    after = apply_passes(rewrite_graph(model), pad_before_pooling, spell_out_hard_swish)  # and those of one compiler
    assert model.SerializeToString() == before
    require_same_results(model, after)
    return after


def test_all_passes_run():
    after = rewritten(flat())
    assert count_types(after) == {"Neg": 1} | REWRITTEN
    assert not any("_scale" in value.name for value in after.graph.value_info)


@pytest.mark.parametrize("kind", BODIES)
def test_all_passes_run_in_bodies(kind):
    counts = count_types(rewritten(model_with_body(kind, NODES, (3, 9, 8), WEIGHTS)))
    times = 2 if kind == "If" else 1
    assert {op_type: counts[op_type] for op_type in REWRITTEN} == {
        op_type: count * times for op_type, count in REWRITTEN.items()
    }


def test_a_body_in_a_body_is_reached():
    """The innermost body reads a tensor of the outermost graph."""
    inner = "If (yes) <then_branch = c () => (float[] p) { p = HardSwish (x_scale) }, "
    inner += "else_branch = d () => (float[] q) { q = Identity (x_scale) }>"
    graph = f"""
        g (float[batch, 2] input) => (float[] y) {{
            x_scale = Relu (input)
            y = If (yes) <
                then_branch = a () => (float[] r) {{ r = {inner} }},
                else_branch = b () => (float[] s) {{ s = Neg (x_scale) }}
            >
        }}"""
    after = rewritten(model_of_text(graph, {"yes": True}))
    assert "HardSwish" not in count_types(after)
    assert {"x.scale"} < {value.name for node in all_nodes(after) for value in node.inputs}


def test_a_graph_without_any_of_the_patterns_stays_as_it_is():
    graph = """
        g (float[batch, 3, 8, 8] input) => (float[batch, 4] y) {
            [conv] c = Conv <pads = [1, 1, 1, 1]> (input, w)
            [relu] a = Relu (c)
            [pool] p = GlobalAveragePool (a)
            [flatten] y = Flatten (p)
        }"""
    model = model_of_text(graph, {"w": np.ones((4, 3, 3, 3), np.float32)})
    after, same = rewritten(model), round_trip(model)
    assert list(after.graph.node) == list(same.graph.node)
    assert list(after.graph.initializer) == list(same.graph.initializer)


def test_the_types_and_shapes_of_activations_are_known_and_constants_are_not_among_them():
    model = flat()
    del model.graph.value_info[:]
    known = {value.name: value.type.tensor_type for value in rewritten(model).graph.value_info}
    assert {"x", "sum.scale", "swish", "padded"} == set(known)
    assert {kind.elem_type for kind in known.values()} == {onnx.TensorProto.FLOAT}
    assert [size.dim_param or size.dim_value for size in known["x"].shape.dim] == ["batch", 3, 9, 8]


def test_a_sequence_of_tensors_keeps_its_type():
    """onnx_ir's own shape inference takes it for one, and ONNX Runtime then refuses the graph."""
    graph = "g (float[batch, 4] input) => (float[] y) { s = SplitToSequence <axis = 1> (input) y = SequenceAt (s, at) }"
    model = model_of_text(graph, {"at": np.array(1)})
    del model.graph.value_info[:]
    (known,) = rewritten(model).graph.value_info
    assert known.type.HasField("sequence_type")


def test_the_descriptions_in_the_file_stay():
    model = flat()
    model.producer_name, model.model_version, model.doc_string, model.graph.doc_string = "someone", 3, "what", "which"
    helper.set_model_props(model, {"key": "value"})
    model.graph.node[0].doc_string = "why"
    after = rewritten(model)
    for name in ("ir_version", "producer_name", "model_version", "doc_string", "opset_import", "metadata_props"):
        assert getattr(after, name) == getattr(model, name)
    assert (after.graph.name, after.graph.doc_string, after.graph.node[0].doc_string) == ("g", "which", "why")


def test_weights_from_beside_the_file_survive_and_keep_their_bytes(tmp_path):
    model = renamed(flat(), {"w": "w_scale"})
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    after = rewritten(onnx.load(tmp_path / "model.onnx"))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    assert np.array_equal(weights["w.scale"], WEIGHTS["w"])


def test_weights_that_were_not_loaded_are_still_found_beside_the_file(tmp_path):
    onnx.save(flat(), tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    after = rewrite_graph(onnx.load(tmp_path / "model.onnx", load_external_data=False))
    onnx.load_external_data_for_model(after, str(tmp_path))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    assert np.array_equal(weights["w"], WEIGHTS["w"])


@pytest.mark.parametrize("inside", [False, True])
def test_a_graph_with_sparse_weights_stays_as_it_is(inside):
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 5]), "w_at"), [2, 4])
    if inside:
        model = model_with_body("Loop", "w = Neg (x) r = HardSwish (w)", (2, 4))
        body = next(attribute.g for attribute in model.graph.node[-1].attribute)
        del body.node[1]
        body.sparse_initializer.append(sparse)
    else:
        model = model_of_text("g (float[batch, 2] input) => (float[batch, 2] y) { y = HardSwish (input) }")
        model.graph.sparse_initializer.append(sparse)
    assert rewrite_graph(model) is model


def test_the_same_graph_gives_the_same_bytes_in_every_process(tmp_path):
    model = model_with_body("If", NODES, (3, 9, 8), WEIGHTS)
    onnx.save(model, tmp_path / "model.onnx")
    code = """
import hashlib, sys, onnx
from enginewright.graph.passes import rewrite_graph
print(hashlib.sha256(rewrite_graph(onnx.load(sys.argv[1])).SerializeToString()).hexdigest())
"""
    command = [sys.executable, "-c", code, str(tmp_path / "model.onnx")]
    settings = os.environ | {"PYTHONHASHSEED": "7"}
    printed = subprocess.check_output(command, env=settings, text=True, cwd=Path(__file__).parents[3])
    assert printed.strip() == hashlib.sha256(rewrite_graph(model).SerializeToString()).hexdigest()

import numpy as np
import onnx_ir as ir
import pytest
from support.pass_checks import BODIES, apply_pass, autocast, count_types, model_of_text, model_with_body

from enginewright.graph.passes.find import remove_unused
from enginewright.graph.passes.for_every_compiler import reshape_strided_copies

COPY = """
    shape = Shape <start = {batch_axis}, end = {after_batch}> ({counted})
    images = Squeeze (shape)
    flat = Reshape ({source}, all)
    range = Range (start, {rows}, by)
    firsts = Mul (range, width)
    columns = Unsqueeze (firsts, behind)
    order = Add (columns, offsets)
    {copied} = Gather <axis = {axis}> (flat, order)
"""


def copy_nodes(source="mean", copied="copied", rows="images", counted="input", batch_axis=0, axis=0):
    after_batch = batch_axis + 1
    return COPY.format(**locals())


def copy_constants(channels=6, width=None, start=0, by=1, offsets=None, behind=(1, 2, 3), everything=-1):
    width = channels if width is None else width
    order = np.arange(width) if offsets is None else np.array(offsets)
    return {
        "all": [everything], "behind": list(behind), "start": start, "by": by, "width": width, "one": 1,
        "offsets": order.reshape(1, -1, 1, 1),
    }  # fmt: skip


def pooled_copy(channels=6, nodes=None, **constants):
    """Return what PyTorch's exporter makes of AdaptiveAvgPool2d(1)."""
    graph = f"""
        g (float[batch, 6, 6, 4] input) => (float[batch, c, 1, 1] y) {{
            [conv] conv = Conv (input, w)
            mean = ReduceMean <keepdims = 1> (conv, axes)
            {copy_nodes(**(nodes or {}))}
            [relu] y = Relu (copied)
        }}"""
    weights = np.random.default_rng(1).normal(0, 0.3, (channels, 6, 1, 1)).astype(np.float32)
    return model_of_text(graph, copy_constants(channels, **constants) | {"axes": [-1, -2], "w": weights})


def reshape_and_clean(model):
    return any([reshape_strided_copies(model), remove_unused(model)])


def test_a_copy_by_strides_becomes_a_reshape():
    after = apply_pass(reshape_and_clean, pooled_copy())
    assert count_types(after) == {"Conv": 1, "ReduceMean": 1, "Relu": 1, "Reshape": 1}
    assert {tensor.name for tensor in after.graph.initializer} == {"axes", "w", "copied.shape"}


@pytest.mark.parametrize(
    "other",
    [
        {"offsets": [1, 0, 2, 3, 4, 5]},
        {"offsets": [0, 1, 2]},
        {"width": 5},
        {"everything": 0},
        {"start": 1},
        {"by": 2},
        {"behind": (0, 2, 3)},
        {"nodes": {"rows": "one"}},
        {"nodes": {"batch_axis": 1}},
        {"nodes": {"source": "input"}},
        {"nodes": {"counted": "conv"}},
    ],
    ids=str,
)
def test_a_gather_of_anything_else_stays(other):
    model = pooled_copy(**other)
    read = ir.from_proto(model)
    assert not reshape_strided_copies(read)
    assert count_types(ir.to_proto(read)) == count_types(model)


def test_a_gather_along_another_axis_stays():
    model = pooled_copy()
    (gather,) = [node for node in model.graph.node if node.op_type == "Gather"]
    gather.attribute[0].i = 1
    assert not reshape_strided_copies(ir.from_proto(model))


def test_a_batch_of_unknown_size_is_not_taken_for_the_inputs():
    model = pooled_copy()
    for value in (*model.graph.input, *model.graph.value_info):
        if value.name in ("input", "mean"):
            value.type.tensor_type.shape.dim[0].Clear()
    assert not reshape_strided_copies(ir.from_proto(model))


@pytest.mark.parametrize("kind", BODIES)
def test_a_copy_in_a_body_becomes_a_reshape_there(kind):
    nodes = copy_nodes(source="x") + "seen = Relu (copied) r = Reshape (seen, rows)"
    model = model_with_body(kind, nodes, (6, 1, 1), copy_constants() | {"rows": [-1, 6]})
    counts = count_types(apply_pass(reshape_and_clean, model))
    assert counts["Reshape"] == (4 if kind == "If" else 2)
    assert not {"Gather", "Range", "Shape"} & set(counts)


def test_autocast_then_casts_at_both_ends_only(tmp_path):
    """AutoCast keeps a Gather with large indices in float32, as every operator on large numbers."""
    model = pooled_copy(channels=600)
    after = apply_pass(reshape_and_clean, model)
    assert count_types(autocast(after, "fp16", tmp_path))["Cast"] == 2
    assert count_types(autocast(model, "fp16", tmp_path))["Cast"] > 2

"""Which layers of two engines do the same work, and which of them lost."""

import pytest

from enginewright.engine.record import LayerTime, node_names, short_kind, short_name
from enginewright.report.where_time_goes import compare, losses


def layer(name, milliseconds=1.0, kind="Convolution", computes=True):
    return LayerTime(name=name, kind=kind, precision="int8", computes=computes, milliseconds=milliseconds)


def reorder(name, milliseconds=1.0):
    return layer(name, milliseconds, kind="Reorder", computes=False)


def paired(ours, theirs):
    return {(pair.ours.name, pair.theirs.name) for pair in compare(ours, theirs).pairs}


def test_fused_layers_are_matched_by_a_node_that_both_have():
    ours = [layer("conv_1/WithoutBiases,Multiply_11,conv_1,relu_1,relu_1_Quantize"), layer("conv_2 + relu_2")]
    theirs = [layer("conv_2"), layer("conv_1/WithoutBiases,conv_1")]
    assert paired(ours, theirs) == {(ours[0].name, theirs[1].name), (ours[1].name, theirs[0].name)}


def test_weights_that_are_named_before_the_main_node_do_not_hide_it():
    """As TensorRT names what it fused."""
    ours = [layer("conv_1.weight + weight_quantize + conv_1 + relu_1")]
    theirs = [layer("conv_1 + relu_1")]
    assert paired(ours, theirs) == {(ours[0].name, theirs[0].name)}


def test_an_addition_that_is_fused_into_another_convolution_pairs_nothing():
    ours, theirs = [layer("conv_1,add"), layer("conv_2")], [layer("conv_1"), layer("conv_2,add")]
    assert paired(ours, theirs) == {("conv_1,add", "conv_1"), ("conv_2", "conv_2,add")}


def test_a_layer_that_the_other_compiler_fused_has_no_counterpart():
    ours, theirs = [layer("conv_1"), reorder("add", 0.5)], [layer("conv_1,add")]
    found = compare(ours, theirs)
    assert [(pair.ours.name, pair.theirs.name) for pair in found.pairs] == [("conv_1", "conv_1,add")]
    assert [one.name for one in found.only_ours] == ["add"]


def test_the_only_layers_left_on_both_sides_are_a_pair():
    ours, theirs = [layer("conv_1"), layer("logits")], [layer("conv_1"), layer("node_linear")]
    assert ("logits", "node_linear") in paired(ours, theirs)
    assert compare(ours, theirs).unmatched == []


def test_several_layers_left_on_both_sides_are_not_paired():
    ours, theirs = [layer("boxes"), layer("scores")], [layer("node_1"), layer("node_2")]
    found = compare(ours, theirs)
    assert found.pairs == []
    assert [one.name for one in found.unmatched] == ["boxes", "scores"]


def test_layers_that_only_one_engine_has_are_listed_the_slowest_first():
    ours = [layer("conv_1"), reorder("quantize", 0.1), reorder("reorder", 0.3), reorder("constant", 0.0)]
    found = compare(ours, [layer("conv_1"), reorder("cast", 0.2)])
    assert [one.name for one in found.only_ours] == ["reorder", "quantize"]
    assert [one.name for one in found.only_theirs] == ["cast"]


@pytest.mark.parametrize(
    ("ours", "lost"),
    [(2.0, True), (1.2, True), (1.09, False), (1.0, False), (0.5, False)],
    ids=["twice", "a fifth", "noise", "as fast", "faster"],
)
def test_a_layer_lost_if_it_is_slower_by_more_than_noise(ours, lost):
    found = compare([layer("conv_1", ours)], [layer("conv_1", 1.0)])
    assert bool(losses(found, whole=10.0)) == lost


def test_a_loss_that_is_negligible_for_the_engine_is_left_out():
    found = compare([layer("conv_1", 0.02), layer("conv_2", 3.0)], [layer("conv_1", 0.01), layer("conv_2", 1.0)])
    assert [pair.ours.name for pair in losses(found, whole=10.0)] == ["conv_2"]


def test_the_greatest_loss_comes_first():
    ours = [layer("conv_1", 2.0), layer("conv_2", 9.0), layer("conv_3", 4.0)]
    found = compare(ours, [layer(f"conv_{number}", 1.0) for number in (1, 2, 3)])
    assert [(pair.ours.name, pair.lost) for pair in losses(found, whole=15.0)] == [
        ("conv_2", 8.0),
        ("conv_3", 3.0),
        ("conv_1", 1.0),
    ]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("node_Conv_754_token_1", "node_Conv_754"),
        ("relu_3_nchwc", "relu_3"),
        ("node_silu/QuickGeluFusion/", "node_silu"),
        ("linear/WithoutBiases/DequantizationMultiply,relu.rounded", "linear and 1 fused"),
        ("node_Conv_292/WithoutBiases,Multiply_11,node_Conv_292,node_relu", "node_Conv_292 and 2 fused"),
        ("conv_1 || conv_2", "conv_1 and 1 fused"),
        ("logits", "logits"),
        ("a" * 30 + "b" * 30, "a" * 24 + "..." + "b" * 24),
        ("", "Convolution"),
    ],
)
def test_a_name_is_shortened_to_its_main_node(name, short):
    assert short_name(layer(name)) == short


def test_the_kind_of_a_layer_leaves_out_its_kernel():
    assert short_kind(layer("x", kind="CaskConvolution sm80_xmma_fprop_tilesize128x64x32")) == "CaskConvolution"
    assert short_kind(layer("x", kind="Reorder")) == "Reorder"


def test_no_name_of_a_node_can_break_a_table():
    assert not any("|" in name for name in node_names(layer("conv_1 || conv_2 + relu")))

"""The descriptions of layers have the forms that NVIDIA's tools and published outputs show."""

import json

import pytest

from enginewright.engine.runtimes.tensorrt_library import layer_of


def layers_read(*layers):
    return [layer_of(json.dumps(layer)) for layer in layers]


def layer(kind, element, kernel="", name="layer", key="Format/Datatype"):
    inputs = [{"Name": "x", "Dimensions": [8, 64, 56, 56], key: element}]
    return {"Name": name, "LayerType": kind, "Inputs": inputs, "Outputs": [], "TacticName": kernel}


@pytest.mark.parametrize("key", ["Format/Datatype", "Datatype"], ids=["TensorRT 10", "TensorRT 11"])
@pytest.mark.parametrize(
    ("element", "precision"),
    [
        ("Float", "fp32"),
        ("Row major linear FP32", "fp32"),
        ("Half", "fp16"),
        ("Channel major FP16 format where channel % 8 == 0", "fp16"),
        ("BFloat16", "bf16"),
        ("Int8", "int8"),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8"),
        ("FP8", "fp8"),
        ("Float8E4M3", "fp8"),
    ],
)
def test_a_layer_runs_in_the_type_of_its_first_input(element, precision, key):
    (described,) = layers_read(layer("CaskConvolution", element, key=key))
    assert (described.precision, described.computes) == (precision, True)


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("sm80_xmma_fprop_implicit_gemm_i8i8_i8i32_f32_nhwckrsc_nhwc", "int8"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n", "fp16"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32", "bf16"),
        ("sm89_xmma_gemm_e4m3e4m3_e4m3f32_f32", "fp8"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64", "tf32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n", "fp32"),
    ],
)
def test_a_hidden_type_is_read_from_the_kernels_name(kernel, precision):
    (described,) = layers_read(layer("gemm", "N/A due to dynamic shapes", kernel))
    assert described.precision == precision


def test_float32_that_is_multiplied_as_tf32_is_called_so():
    (described,) = layers_read(layer("gemm", "Float", "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n"))
    assert described.precision == "tf32"


def test_nothing_is_claimed_where_no_type_is_known():
    (hidden,) = layers_read(layer("gemm", "N/A due to dynamic shapes", "0x0000000000000001"))
    assert (hidden.precision, hidden.computes) == ("unknown", True)


def test_a_single_layer_that_hides_its_type_stays_unknown_beside_others():
    hidden, shown = layers_read(layer("gemm", "N/A due to dynamic shapes"), layer("CaskConvolution", "Int8"))
    assert (hidden.precision, shown.precision) == ("unknown", "int8")


@pytest.mark.parametrize(
    ("kind", "kernel", "computes"),
    [
        ("correlation", "", True),
        ("gemm", "", True),
        ("CaskGemmMatrixMultiply", "", True),
        ("kgen", "__myl_fc_mha_0x1", True),
        ("kgen", "__myl_AddRelu_0x1", False),
        ("Reformat", "", False),
        ("CaskPooling", "sm50_xmma_pooling", False),
    ],
)
def test_only_layers_that_carry_the_arithmetic_count(kind, kernel, computes):
    described, _ = layers_read(layer(kind, "Half", kernel), layer("CaskConvolution", "Half"))
    assert described.computes == computes


def test_the_name_of_a_layer_does_not_tell_its_profile():
    text = json.dumps(layer("CaskConvolution", "Half", name="conv [profile 1]"))
    assert [(each.name, each.profile) for each in (layer_of(text, 1), layer_of(text))] == [
        ("conv", 1), ("conv [profile 1]", 0),
    ]  # fmt: skip

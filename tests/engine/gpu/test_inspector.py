"""The descriptions of layers have the forms that NVIDIA's tools and published outputs show."""

import json

import pytest

from enginery.engine.gpu.inspector import layers_of


def layers_read(*layers):
    return layers_of([list(map(json.dumps, layers))])


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
    assert layers_read() == []


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


def test_the_layers_of_each_profile_are_told_apart():
    """Seen with 10.6 on an H200: in a profile, TensorRT describes its layers, those of later profiles, and those of
    Myelin that contexts had before, whose names may say another profile."""
    own = [json.dumps(layer("CaskConvolution", "Half", name=f"conv{suffix}")) for suffix in ("", " [profile 1]")]
    fused = [json.dumps(layer("gemm", "Half", name=name)) for name in ("fc_myl3_1", "fc [profile 2]_myl7_1")]
    layers = layers_of([[own[0], fused[0], own[1], ""], ["", fused[0], own[1], fused[1]]])
    assert [(each.name, each.profile) for each in layers] == [
        ("conv", 0), ("fc_myl3_1", 0), ("conv", 1), ("fc [profile 2]_myl7_1", 1),
    ]  # fmt: skip


def test_a_version_that_describes_all_layers_at_once_has_equally_many_in_each_profile():
    texts = [json.dumps(layer("gemm", "Half", name=f"fc_myl{number}")) for number in range(4)]
    assert [each.profile for each in layers_of([texts, texts])] == [0, 0, 1, 1]

import numpy as np
import pytest
from support.pass_checks import BODIES, apply_pass, autocast, count_types, model_of_text, model_with_body, round_trip

from enginewright.graph.passes.for_one_compiler import spell_out_hard_swish


def convolution_and_swish():
    weights = np.random.default_rng(1).normal(0, 0.3, (32, 32, 1, 1)).astype(np.float32)
    graph = """
        g (float[batch, 32, 4, 4] input) => (float[batch, 32, 4, 4] y) {
            [conv] c = Conv (input, w)
            [swish] y = HardSwish (c)
        }"""
    return model_of_text(graph, {"w": weights})


def test_hard_swish_becomes_a_hard_sigmoid_and_a_product():
    after = apply_pass(spell_out_hard_swish, convolution_and_swish())
    assert count_types(after) == {"Conv": 1, "HardSigmoid": 1, "Mul": 1}


def test_another_domains_hard_swish_stays():
    function = '<domain: "local", opset_import: ["": 20]> HardSwish (x) => (z) { z = Neg (x) }'
    model = model_of_text(
        "g (float[batch, 2] input) => (float[] y) { y = local.HardSwish (input) }", functions=function
    )
    assert apply_pass(spell_out_hard_swish, model) == round_trip(model)


@pytest.mark.parametrize("kind", BODIES)
def test_hard_swish_in_a_body_is_spelled_out_there(kind):
    after = apply_pass(spell_out_hard_swish, model_with_body(kind, "h = HardSwish (x) r = HardSwish (h)", (3, 4)))
    counts = count_types(after)
    assert "HardSwish" not in counts
    assert counts["HardSigmoid"] == counts["Mul"] == (4 if kind == "If" else 2)


@pytest.mark.parametrize(
    "nodes",
    [
        "z = HardSwish (x)",
        """yes = Constant <value = bool {1}> ()
        z = If (yes) <
            then_branch = a () => (float[] r) { r = HardSwish (x) },
            else_branch = b () => (float[] s) { s = HardSwish (x) }
        >""",
    ],
    ids=["itself", "a body in it"],
)
def test_hard_swish_in_a_function_is_spelled_out_there(nodes):
    function = f'<domain: "local", opset_import: ["": 20]> swish (x) => (z) {{ {nodes} }}'
    model = model_of_text(
        "g (float[batch, 2] input) => (float[batch, 2] y) { y = local.swish (input) }", functions=function
    )
    counts = count_types(apply_pass(spell_out_hard_swish, model))
    assert counts["HardSigmoid"] == counts["Mul"] == count_types(model)["HardSwish"]
    assert "HardSwish" not in counts


def test_nvidias_parser_then_reads_it_in_bf16(tmp_path):
    trt = pytest.importorskip("tensorrt_rtx")

    def errors(model):
        logger = trt.Logger(trt.Logger.INTERNAL_ERROR)
        network = trt.Builder(logger).create_network()
        parser = trt.OnnxParser(network, logger)
        parser.parse(autocast(model, "bf16", tmp_path).SerializeToString())
        return [parser.get_error(index).desc() for index in range(parser.num_errors)]

    model = convolution_and_swish()
    assert errors(apply_pass(spell_out_hard_swish, model)) == []
    assert "HardSwish" in str(errors(model))  # once this fails, the pass can go

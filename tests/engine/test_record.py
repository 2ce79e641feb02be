"""What the layers of an engine really run in."""

import pytest

from enginewright.engine.record import EngineRecord, Layer


def layer(precision, computes=True):
    return Layer(name=f"{precision} layer", kind="Convolution", precision=precision, computes=computes)


@pytest.mark.parametrize(
    ("precision", "tf32", "ran", "executed", "share", "ran_as"),
    [
        ("int8", True, ["int8", "fp32", "int8"], {"int8": 2, "fp32": 1}, 2 / 3, None),
        ("int8", True, ["fp32", "fp16", "fp32"], {"fp32": 2, "fp16": 1}, 0, "fp32"),
        ("fp32", True, ["tf32", "fp32"], {"tf32": 1, "fp32": 1}, 1, None),
        ("fp32", False, ["tf32", "fp32"], {"tf32": 1, "fp32": 1}, 0.5, None),
        ("fp32", False, ["tf32"], {"tf32": 1}, 0, "tf32"),
        ("fp16", True, ["tf32"], {"tf32": 1}, 0, "tf32"),
        ("int8", True, [], {}, 0, None),
        ("int8", True, ["unknown", "int8", "unknown"], {"unknown": 2, "int8": 1}, 1, None),
        ("int8", True, ["int8", "unknown", "fp32"], {"int8": 1, "unknown": 1, "fp32": 1}, 0.5, None),
        ("int8", True, ["unknown", "unknown", "fp32"], {"unknown": 2, "fp32": 1}, 0, None),
    ],
)
def test_layers_count_as_asked_if_they_run_in_the_engines_precision(
    build, precision, tf32, ran, executed, share, ran_as
):
    layers = (*map(layer, ran), layer("fp64", computes=False))
    record = EngineRecord.model_construct(
        precision=precision, build=build.model_copy(update={"tf32": tf32}), layers=layers
    )
    assert list(record.executed.items()) == list(executed.items())
    assert record.share_as_asked == share
    assert len(record.not_as_asked) == round((1 - share) * (len(ran) - ran.count("unknown")))
    assert (record.ran_as, record.runs_its_precision) == (ran_as, ran_as is None)
    assert record.layers_are_known == bool(share or ran_as)

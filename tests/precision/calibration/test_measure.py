import threading
from contextlib import contextmanager

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.pass_checks import model_of_text
from support.quantized import KEEP_NOTHING

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import CalibrationParams
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.calibration.calibrate import batch_in_memory, calibrate_graph, measure, ranges_of_parts
from enginewright.precision.cast import cast
from enginewright.precision.dialect import dialect_of

ACTIVATIONS = {"input", "conv", "relu", "conv_2", "relu_2", "pooled", "features", "logits"}


def all_at_once(graph, images):
    """Return every activation of all images, by ONNX Runtime on a graph that outputs them all."""
    watched = onnx.shape_inference.infer_shapes(graph)
    watched.graph.output.extend(watched.graph.value_info)
    session = onnxruntime.InferenceSession(watched.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"input": images}), strict=True)) | {"input": images}


def test_each_range_is_that_of_all_samples_run_at_once(tiny_graph, samples):
    wanted = all_at_once(tiny_graph, samples.cycled(len(samples))["input"])
    histograms = measure(tiny_graph, samples.batches(5), bins=2048)
    assert histograms.keys() == wanted.keys() == ACTIVATIONS
    for name, values in wanted.items():
        assert histograms[name].amax == pytest.approx(np.abs(values).max(), rel=1e-5)
        assert histograms[name].counts.sum() == values.size


def test_what_only_moves_is_counted_once():
    nodes = (
        "t = Transpose <perm = [0, 2, 1]> (input) u = Reshape (t, flat) r = Relu (u) v = Transpose (r) "
        "i = Cast <to = 7> (v) j = Transpose (i) y = Identity (r) o = Transpose (w) z = MatMul (r, o)"
    )
    constants = {"flat": np.array([2, 12]), "w": np.ones((3, 12), np.float32)}
    model = model_of_text(f"g (float[2,3,4] input) => (float[] y, int64[] j, float[] z) {{ {nodes} }}", constants)
    model.graph.value_info.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3, 12]))
    found = measure(model, [{"input": np.arange(-12, 12, dtype=np.float32).reshape(2, 3, 4)}], bins=2048)
    assert found["t"] is found["u"] is found["input"]
    assert found["v"] is found["r"]
    assert np.array_equal(found["y"].counts, found["r"].counts)
    assert (found["r"].lowest, found["input"].lowest, "i" in found) == (0, -12, False)
    assert found["o"].amax == 1  # of a constant, which is not measured itself


@pytest.mark.parametrize("batch", [1, 2, 8, 21])
def test_the_batch_size_changes_neither_ranges_nor_memory(tiny_graph, samples, batch):
    wanted = measure(tiny_graph, samples.batches(4), bins=2048)
    got = measure(tiny_graph, samples.batches(batch), bins=2048)
    assert np.array_equal(got["input"].counts, wanted["input"].counts)
    for name, histogram in got.items():
        assert len(histogram.counts) == 2 * 2048
        assert histogram.width == wanted[name].width
        assert histogram.amax == pytest.approx(wanted[name].amax, rel=1e-5)  # sums in another order


@pytest.mark.parametrize(("fits", "batch"), [(0.5, 1), (3.5, 3), (100, 8)])
def test_a_batch_holds_what_fits_into_memory(fits, batch, tiny_graph, samples, monkeypatch):
    made = all_at_once(tiny_graph, samples.cycled(1)["input"])
    each = sum(values.nbytes for name, values in made.items() if name != "input")
    monkeypatch.setattr(f"{measure.__module__}.MOST_BYTES", int(fits * each))
    assert batch_in_memory(tiny_graph, samples, 8) == batch


def test_many_threads_count_the_same(tiny_graph, samples, monkeypatch):
    wanted = measure(tiny_graph, samples.batches(4), bins=2048)
    threads = set()

    @contextmanager
    def counting():
        def count(index, minlength):
            threads.add(threading.get_ident())
            return np.bincount(index, minlength=minlength)

        yield count

    monkeypatch.setattr(f"{measure.__module__}.working_threads", lambda: 64)
    monkeypatch.setattr(f"{measure.__module__}.MANY", 0)
    monkeypatch.setattr(f"{measure.__module__}.counting_in_threads", counting)
    got = measure(tiny_graph, samples.batches(4), bins=2048)
    assert threads
    assert threading.get_ident() not in threads
    assert list(got) == list(wanted)
    assert all(np.array_equal(got[name].counts, wanted[name].counts) for name in wanted)


def test_float16_is_measured_as_well(tiny_onnx, tiny_graph, samples):
    half = cast(tiny_onnx, "fp16", KEEP_NOTHING)
    wanted, got = (measure(graph, samples.batches(4), bins=2048) for graph in (tiny_graph, half))
    for name in ACTIVATIONS:
        assert got[name].amax == pytest.approx(wanted[name].amax, rel=5e-3)
        assert got[name].counts.sum() == wanted[name].counts.sum()


def test_integer_tensors_are_not_measured():
    nodes = [
        helper.make_node("Shape", ["input"], ["shape"]),
        helper.make_node("Reshape", ["input", "shape"], ["same"]),
        helper.make_node("Abs", ["same"], ["logits"]),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("input", "logits")]
    graph = helper.make_graph(nodes, "shapes", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    assert measure(model, [{"input": np.ones((2, 4), np.float32)}], bins=2048).keys() == {"input", "same", "logits"}


def test_an_activation_that_overflows_is_named(tiny_graph):
    with pytest.raises(EnginewrightError, match=r"^the activation \w+ holds NaN or infinity"):
        measure(tiny_graph, [{"input": np.full((2, 3, 8, 8), 3e38, np.float32)}], bins=2048)


def test_inputs_of_integers_are_fed_and_have_no_range(pair_onnx, pair_feeds):
    found = measure(onnx.load(pair_onnx), [pair_feeds(2, 8, 8), pair_feeds(2, 9, 12)], bins=2048)
    assert found.keys() == {"image", "conv", "map", "pooled", "seen", "rows", "looked_up", "both", "scores"}
    assert found["map"].counts.sum() == 2 * 32 * (8 * 8 + 9 * 12)


def test_the_ranges_of_a_part_are_what_its_samples_reach(tiny_onnx, samples, tmp_path):
    graph, some = load_graph(tiny_onnx), np.arange(3)
    save_graph(graph, tmp_path / "model.onnx")
    params = CalibrationParams(method="max", percentile=99.9, bins=2048, batch=8, file=None)
    ranges = calibrate_graph(tmp_path, samples, params, dialect_of("openvino", "cpu", "avx512_vnni"), None, tmp_path)
    whole, found = ranges_of_parts(ranges, graph, samples, [np.arange(len(samples)), some])
    assert whole.amax == pytest.approx(ranges.amax, rel=1e-5)
    assert found.amax["input"] == pytest.approx(np.abs(samples.read_at(some)["input"]).max())
    assert found.amax["logits"] < ranges.amax["logits"]
    assert (found.cache_sha256, found.methods) == (ranges.cache_sha256, ranges.methods)

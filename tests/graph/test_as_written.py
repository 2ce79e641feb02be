import ml_dtypes
import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginewright.graph.as_written import open_as_written, open_optimized, run_graph


def test_a_graph_runs_from_memory_as_from_disk(tiny_graph, tiny_onnx, samples):
    feeds = samples.cycled(3)
    from_memory, from_disk = run_graph(open_as_written(tiny_graph), feeds), run_graph(open_as_written(tiny_onnx), feeds)
    assert from_memory.keys() == from_disk.keys() == {"logits"}
    assert np.array_equal(from_memory["logits"], from_disk["logits"])


def test_as_many_threads_compute_as_cores_may_be_used(tiny_graph, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("enginewright.core.cores.usable_cores", lambda: 3)  # of more that the machine has
    assert open_as_written(tiny_graph).get_session_options().intra_op_num_threads == 3


@pytest.mark.parametrize("kind", [np.int8, np.uint8, ml_dtypes.float8_e4m3fn])
def test_what_is_optimized_rounds_as_it_is_written(kind):
    """ONNX Runtime's optimizer leaves out a Relu before float8, and makes products of bytes, if it may."""
    first = "r = Relu (x) q = QuantizeLinear (r, s, z) d = DequantizeLinear (q, s, z) e = DequantizeLinear (w, s, v)"
    nodes = f"{first} m = MatMul (d, e) p = QuantizeLinear (m, t, z) y = DequantizeLinear (p, t, z)"
    rng = np.random.default_rng(0)
    constants = {"s": np.float32(0.1), "t": np.float32(10), "z": kind(0), "v": np.int8(0)}
    weights = {"w": rng.integers(64, 127, (8, 8), np.int8)}  # sums in 16 bits, as some CPUs add bytes, overflow
    model = model_of_text(f"g (float[n,8] x) => (float[n,8] y) {{ {nodes} }}", constants | weights)
    feeds = {"x": rng.uniform(-5, 30, (64, 8)).astype(np.float32)}
    written, optimized = (run_graph(opened(model), feeds)["y"] for opened in (open_as_written, open_optimized))
    np.testing.assert_allclose(optimized, written, rtol=1e-6)


def test_a_normalized_product_in_float16_does_not_crash_the_optimizer():
    """ONNX Runtime 1.30 and 1.31 end the process while they lay such a graph out anew, as that of each transformer."""
    nodes = "n = LayerNormalization <axis = -1> (x, s, b) t = Transpose <perm = [1, 0, 2]> (n) y = MatMul (t, w)"
    model = model_of_text(
        f"g (float16[2,n,8] x) => (float16[n,2,8] y) {{ {nodes} }}",
        {name: np.ones(shape, np.float16) for name, shape in {"s": 8, "b": 8, "w": (8, 8)}.items()},
    )
    assert run_graph(open_optimized(model), {"x": np.ones((2, 3, 8), np.float16)})["y"].shape == (3, 2, 8)

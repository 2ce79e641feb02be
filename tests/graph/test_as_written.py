import numpy as np

from enginery.graph.as_written import open_as_written, run_graph


def test_a_graph_runs_from_memory_as_from_disk(tiny_graph, tiny_onnx, samples):
    feeds = samples.cycled(3)
    from_memory, from_disk = run_graph(open_as_written(tiny_graph), feeds), run_graph(open_as_written(tiny_onnx), feeds)
    assert from_memory.keys() == from_disk.keys() == {"logits"}
    assert np.array_equal(from_memory["logits"], from_disk["logits"])


def test_as_many_threads_compute_as_cores_may_be_used(tiny_graph, monkeypatch):
    monkeypatch.setattr("enginery.graph.as_written.usable_cores", lambda: 3)  # of more that the machine has
    assert open_as_written(tiny_graph).get_session_options().intra_op_num_threads == 3

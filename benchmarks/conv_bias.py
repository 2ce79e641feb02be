"""Measure what the biases of convolutions cost on a GPU: a graph with them, without them, and with ONNX Runtime fusing.

    python benchmarks/conv_bias.py artifacts/converted/fp16/model.onnx

PyTorch's exporter leaves out biases that are zero, and in a network with random weights those of BatchNorm are zero. So
a bare loop over such a network times another graph than that of a trained one. The figures are milliseconds of bare
loops that replay a CUDA graph over inputs on the device, as medians of CALLS calls. Each variant has its own process,
because a second session can slow all sessions of a process.
"""

import multiprocessing
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime

BATCHES, WARM_UP, CALLS = (1, 8, 32, 128), 10, 60


def without_biases(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph of the same shapes that computes something else."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph)
    for node in changed.graph.node:
        if node.op_type == "Conv":
            del node.input[2:]
    return changed


def open_session(
    graph: str | bytes, settings: Mapping[str, str], provider: str = "CUDAExecutionProvider"
) -> onnxruntime.InferenceSession:
    onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(graph, options, providers=[(provider, dict(settings))])
    if provider not in session.get_providers():
        sys.exit("needs a GPU, and ONNX Runtime's CUDA provider did not load")
    return session


def milliseconds(session: onnxruntime.InferenceSession, batch: int) -> float:
    (source,), (result,) = session.get_inputs(), session.get_outputs()
    images = np.random.default_rng(0).normal(size=(batch, *source.shape[1:])).astype(np.float32)
    binding, run = session.io_binding(), onnxruntime.RunOptions()
    run.add_run_config_entry("gpu_graph_id", str(batch))
    inputs = onnxruntime.OrtValue.ortvalue_from_numpy(images, "cuda", 0)
    outputs = onnxruntime.OrtValue.ortvalue_from_shape_and_type((batch, *result.shape[1:]), np.float32, "cuda", 0)
    binding.bind_ortvalue_input(source.name, inputs)
    binding.bind_ortvalue_output(result.name, outputs)
    seconds = []
    for _ in range(WARM_UP + CALLS):
        started = time.perf_counter()
        session.run_with_iobinding(binding, run)
        seconds.append(time.perf_counter() - started)
    return 1000 * median(seconds[WARM_UP:])


def time_variant(onnx_path: str, biases: bool, fused: bool) -> list[float]:
    graph = onnx.load(onnx_path)
    settings = {"enable_cuda_graph": "1", "use_tf32": "1", "prefer_nhwc": "1", "fuse_conv_bias": str(int(fused))}
    session = open_session((graph if biases else without_biases(graph)).SerializeToString(), settings)
    return [milliseconds(session, batch) for batch in BATCHES]


def main() -> None:
    path = sys.argv[1]
    biases = sum(node.op_type == "Conv" and len(node.input) == 3 for node in onnx.load(Path(path)).graph.node)
    print(f"{biases} convolutions with a bias\n\n| | {' | '.join(f'batch {b}' for b in BATCHES)} |")
    print("|---" * (len(BATCHES) + 1) + "|")
    variants = {"as it is": (True, False), "without biases": (False, False), "as it is, fused": (True, True)}
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, max_tasks_per_child=1) as processes:
        for name, (biased, fused) in variants.items():
            times = processes.submit(time_variant, path, biased, fused).result()
            print(f"| {name} | {' | '.join(f'{one:.3f}' for one in times)} |", flush=True)


if __name__ == "__main__":
    main()

"""Time how ONNX Runtime's CUDA provider can lay out images, and hold its answers against those of a CPU.

    python benchmarks/gpu/layouts.py artifacts/converted/fp16/model.onnx ...

Milliseconds are medians of bare loops that replay a CUDA graph over inputs on the device, each size in a session of its
own. An error is relative to what the CPU says of the same graph, and the larger of those of two calls at batch 2 and 4.
It is without TF32: a network that is not trained can amplify that by a thousand, which looks like a wrong kernel.
"""

import multiprocessing
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from statistics import median

import numpy as np
import onnxruntime
from numpy.typing import NDArray

BATCHES, CHECKED = (1, 8, 32), (2, 4)
WARM_UP, CALLS = 10, 60
LAYOUTS = {
    "channels first": {},
    "first, biases fused": {"fuse_conv_bias": "1"},
    "channels last": {"prefer_nhwc": "1"},
    "last, biases fused": {"prefer_nhwc": "1", "fuse_conv_bias": "1"},
}


def open_session(
    graph: str, settings: Mapping[str, str], provider: str = "CUDAExecutionProvider"
) -> onnxruntime.InferenceSession:
    onnxruntime.preload_dlls()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(graph, options, providers=[(provider, dict(settings))])
    if provider not in session.get_providers():
        sys.exit("needs a GPU, and ONNX Runtime's CUDA provider did not load")
    return session


def milliseconds(graph: str, layout: Mapping[str, str], batch: int) -> float:
    session = open_session(graph, {"enable_cuda_graph": "1", "use_tf32": "1", **layout})
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


def answers(session: onnxruntime.InferenceSession, batch: int) -> NDArray[np.float64]:
    (source,) = session.get_inputs()
    images = np.random.default_rng(batch).normal(size=(batch, *source.shape[1:])).astype(np.float32)
    return np.asarray(session.run(None, {source.name: images})[0], np.float64)


def error(graph: str, layout: Mapping[str, str]) -> float:
    cpu = open_session(graph, {}, "CPUExecutionProvider")
    errors = []
    for batch in CHECKED:
        wanted = answers(cpu, batch)
        gpu = open_session(graph, {"use_tf32": "0", **layout})
        found = (answers(gpu, batch) for _ in range(2))
        errors += [np.linalg.norm(one - wanted) / np.linalg.norm(wanted) for one in found]
    return float(np.max(errors))


def measured(graph: str, layout: Mapping[str, str]) -> str:
    """Return the cells of a row. Each layout has its own process, because a session can slow others."""
    try:
        times = [milliseconds(graph, layout, batch) for batch in BATCHES]
        return " | ".join([*(f"{one:.3f}" for one in times), f"{error(graph, layout):.1e}"])
    except Exception as refused:  # ONNX Runtime's own exceptions share no base class
        return f"refused: {str(refused).strip().splitlines()[0][:80]}"


def main() -> None:
    print(f"| graph | layout | {' | '.join(f'batch {batch}' for batch in BATCHES)} | error |")
    print("|---" * (len(BATCHES) + 3) + "|")
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, max_tasks_per_child=1) as processes:
        for path in sys.argv[1:]:
            for name, layout in LAYOUTS.items():
                cells = processes.submit(measured, path, layout).result()
                print(f"| {path} | {name} | {cells} |", flush=True)


if __name__ == "__main__":
    main()

"""What the harness adds on a GPU: its figures beside those of a bare loop that does nothing but replay a CUDA graph.

`python benchmarks/bare_loop.py artifacts/engines/fp16` after `dvc repro` with `runtime: onnxruntime` on a GPU. Two bare
loops: `queued` launches the next graph while the last runs, as published figures do; `one by one` waits for each, so
that the launch counts. The harness waits too, with copies around it, and tells the compute alone by events. First in
one process, with PyTorch in it; then each in a process of its own, where what a graph replays is faster (`python
benchmarks/streams.py`). Exits 1 if the harness is more than 3 % off the queued loop.
"""

import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime
import torch

from enginery.core.params.all import Params
from enginery.data.feeds import BATCH
from enginery.engine.engine import Engine
from enginery.engine.machine import Machine
from enginery.engine.record import EngineRecord
from enginery.engine.runtimes.onnxruntime import convolutions
from enginery.graph.interface import Interface
from enginery.model.checkpoint import load_model
from enginery.speed.contenders import pytorch_contender
from enginery.speed.isolated import measure_engine_isolated

ROUNDS, CALLS, MOST_OVERHEAD = 7, 100, 0.03
MACHINE = Path("artifacts/machine.json")
Loop = Callable[[], object]


def bare_pytorch(model: torch.nn.Module, images: np.ndarray) -> Loop:
    own, placed = model.cuda(), torch.from_numpy(images).cuda()
    return captured(lambda: own(placed))


def captured(call: Loop) -> Loop:
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.inference_mode():
        with torch.cuda.stream(aside):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            call()
    return graph.replay


def bare_onnxruntime(onnx: Path, interface: Interface, images: np.ndarray, tf32: bool) -> Loop:
    (taken,), (returned,) = interface.inputs, interface.outputs
    shape = returned.at(interface.sizes({taken.name: images.shape}))
    placed, logits = torch.from_numpy(images).cuda(), torch.empty(shape, device="cuda")
    settings = {
        "enable_cuda_graph": "1",
        "use_tf32": str(int(tf32)),
        "user_compute_stream": str(torch.cuda.current_stream().cuda_stream),
        **convolutions(str(onnx)),
    }
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # the file is optimized
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(onnx), options, providers=[("CUDAExecutionProvider", settings)])
    binding = session.io_binding()
    binding.bind_input(taken.name, "cuda", 0, np.float32, tuple(placed.shape), placed.data_ptr())
    binding.bind_output(returned.name, "cuda", 0, np.float32, tuple(logits.shape), logits.data_ptr())
    waits_not = onnxruntime.RunOptions()
    waits_not.add_run_config_entry("disable_synchronize_execution_providers", "1")
    kept = (placed, logits)  # the binding knows only their addresses
    return lambda: (session.run_with_iobinding(binding, waits_not), kept)


def queued(loop: Loop) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    before.record()
    for _ in range(CALLS):
        loop()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / CALLS


def one_by_one(loop: Loop) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    taken = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        before.record()
        loop()
        after.record()
        after.synchronize()
        taken.append(before.elapsed_time(after))
    return median(taken)


def harness(contender: Loop) -> float:
    return median(1000 * float(contender()) for _ in range(CALLS))


def main() -> None:
    folder = Path(sys.argv[1])
    worst = max(in_one_process(folder), each_by_itself(folder))
    if worst > MOST_OVERHEAD:
        sys.exit(f"the harness is {worst:.1%} off the bare loop, and {MOST_OVERHEAD:.0%} is what it may be")


def open_engine(folder: Path) -> Engine:
    return open_engine(folder, Machine.read(MACHINE), Params.read().inference)


def in_one_process(folder: Path) -> float:
    """The worst by which the harness is off."""
    params, model = Params.read(), load_model(Path("artifacts/weights"))
    worst = 0.0
    print("| in one process | batch | bare, queued, ms | bare, one by one, ms | harness, ms | harness / queued |")
    print("|---|---|---|---|---|---|")
    # A stream with a name: ONNX Runtime takes the default one for none, and would work on another than the events.
    with open_engine(folder) as engine, torch.cuda.stream(torch.cuda.Stream()):
        record = engine.record
        (spec,), tf32 = record.interface.inputs, record.build.tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        for batch in params.benchmark.batches:
            images = images_for(record, batch)
            feeds = {spec.name: images}
            pairs = {
                f"engine {record.precision}": (
                    bare_onnxruntime(folder / "engine.onnx", record.interface, images, tf32),
                    engine.bind(feeds),
                ),
                "PyTorch cuda_graph": (
                    bare_pytorch(model, images),
                    pytorch_contender(model, "cuda_graph", "cuda", tf32, feeds),
                ),
            }
            for what, (bare, ours) in pairs.items():
                queued(bare), harness(ours)  # warm up
                rounds = [(queued(bare), one_by_one(bare), harness(ours)) for _ in range(ROUNDS)]
                in_queue, waited, measured = (median(column) for column in zip(*rounds, strict=True))
                ratio = median(ours / bare for bare, _, ours in rounds)
                worst = max(worst, abs(ratio - 1))
                print(
                    f"| {what} | {batch} | {in_queue:.3f} | {waited:.3f} | {measured:.3f} | {ratio:.3f} |", flush=True
                )
    return worst


def each_by_itself(folder: Path) -> float:
    params, validation, worst = Params.read(), Path("artifacts/samples/validation"), 0.0
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, max_tasks_per_child=1) as processes:
        bare = [processes.submit(bare_by_itself, folder, batch).result() for batch in params.benchmark.batches]
    ours = measure_engine_isolated(folder, MACHINE, validation, params.inference, params.benchmark).compute
    print("\n| in a process of its own | batch | bare, queued, ms | harness, ms | harness / queued |")
    print("|---|---|---|---|---|")
    for batch, taken in zip(params.benchmark.batches, bare, strict=True):
        worst = max(worst, abs(ours[batch] / taken - 1))
        print(f"| engine {folder.name} | {batch} | {taken:.3f} | {ours[batch]:.3f} | {ours[batch] / taken:.3f} |")
    return worst


def bare_by_itself(folder: Path, batch: int) -> float:
    record = EngineRecord.read(folder / "engine.json")
    with torch.cuda.stream(torch.cuda.Stream()):
        images = images_for(record, batch)
        loop = bare_onnxruntime(folder / "engine.onnx", record.interface, images, record.build.tf32)
        queued(loop)  # warms up
        return median(queued(loop) for _ in range(ROUNDS))


def images_for(record: EngineRecord, batch: int) -> np.ndarray:
    (spec,) = record.interface.inputs
    shape = spec.at(record.profile.at("opt") | {BATCH: batch})
    return np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)


if __name__ == "__main__":
    main()

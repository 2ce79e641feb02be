"""Measure a replayed CUDA graph in a process that holds only the engine, and after other work on the GPU.

Run `python benchmarks/streams.py artifacts/engines/fp16` after `dvc repro` with `runtime: onnxruntime` on a GPU. Each
kind of additional work starts in a process that held only the engine. The figures are ms of compute, medians of CALLS.
"""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bare_loop import CALLS, images_for, open_here

from enginewright.engine.engine import Engine
from enginewright.engine.gpu import Buffer, Stream
from enginewright.model.checkpoint import load_model

BATCHES, STREAMS = (1, 8), 10
AddedWork = Iterator[str]  # does more and more work on the GPU, and names each step


def streams(_: Path, opened: ExitStack) -> AddedWork:
    """Add streams that do as little as a stream can: each fills a few bytes."""
    room = Buffer(1024)
    opened.callback(room.close)
    for count in range(1, STREAMS + 1):
        stream = Stream()
        opened.callback(stream.close)
        stream.poison(room, 1024)
        stream.synchronize()
        yield f"{count} more streams"


def sessions(folder: Path, opened: ExitStack) -> AddedWork:
    for count in (1, 2):
        compute(opened.enter_context(open_here(folder)), batch=1)
        yield f"{count} more engines"


def pytorch(_: Path, opened: ExitStack) -> AddedWork:
    model = load_model(Path("artifacts/weights")).cuda()
    yield "PyTorch's weights"
    model.half()
    torch.cuda.synchronize()
    yield "PyTorch's weights in fp16"
    with torch.inference_mode():
        model(torch.randn(1, 3, 224, 224, device="cuda", dtype=torch.half))
    torch.cuda.synchronize()
    yield "PyTorch's answer"


def compute(engine: Engine, batch: int) -> float:
    feeds = {spec.name: images_for(engine.record, batch) for spec in engine.record.interface.inputs}
    call: Callable[[], Any] = engine.bind(feeds)
    return 1000 * median(float(call()) for _ in range(CALLS))


def measure(folder: Path, added_work: Callable[[Path, ExitStack], AddedWork]) -> list[tuple[str, list[float]]]:
    with ExitStack() as opened:
        engine = opened.enter_context(open_here(folder))
        found = [("by itself", [compute(engine, batch) for batch in BATCHES])]
        for what in added_work(folder, opened):
            found.append((what, [compute(engine, batch) for batch in BATCHES]))
        return found


def main() -> None:
    folder = Path(sys.argv[1])
    print(f"| {folder.name}, beside | {' | '.join(f'batch {batch}' for batch in BATCHES)} |\n|---|---|---|")
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, max_tasks_per_child=1) as processes:
        for added_work in (streams, sessions, pytorch):
            for what, times in processes.submit(measure, folder, added_work).result():
                print(f"| {what} | {' | '.join(f'{one:.3f}' for one in times)} |", flush=True)


if __name__ == "__main__":
    main()

"""Measure PyTorch on a GPU at batch sizes where launching its kernels takes most time, and what changes that time.

Run `python benchmarks/launches.py artifacts/engines/fp32` after `dvc repro` on a GPU. One model, channels last and in
TF32, runs in a bare loop that queues calls or waits for each, in Enginewright's harness, and in the harness with
something else in the process. All take turns in rounds.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import torch
from bare_loop import Loop, harness, one_by_one, open_here, queued

from enginewright.engine.gpu import GpuSampler
from enginewright.measure.contenders import pytorch_contender
from enginewright.model.checkpoint import load_model

ROUNDS, BATCHES, BASELINE = 7, (1, 8, 32), "eager+channels_last"
Way = Callable[[], float]


def bare(model: torch.nn.Module, images: np.ndarray) -> Loop:
    own = copy.deepcopy(model).cuda().to(memory_format=torch.channels_last)
    placed = torch.from_numpy(images).cuda().contiguous(memory_format=torch.channels_last)

    def call() -> None:
        with torch.inference_mode():
            own(placed)

    return call


@contextmanager
def cudnn_search() -> Iterator[None]:
    torch.backends.cudnn.benchmark = True
    yield
    torch.backends.cudnn.benchmark = False


def ways_of(model: torch.nn.Module, batch: int, engine: Path) -> dict[str, Way]:
    images = np.random.default_rng(0).normal(0, 1, (batch, 3, 224, 224)).astype(np.float32)
    loop, ours = bare(model, images), pytorch_contender(model, BASELINE, "cuda", True, {"input": images})
    return {
        "bare, queued": lambda: queued(loop),
        "bare, one by one": lambda: one_by_one(loop),
        "harness": lambda: harness(ours),
        "harness, while NVML is asked": lambda: beside(GpuSampler, ours),
        "harness, with cuDNN searching": lambda: beside(cudnn_search, ours),
        "harness, beside an open engine": lambda: beside(lambda: open_here(engine), ours),
    }


def beside(what: Callable[[], AbstractContextManager[object]], contender: Loop) -> float:
    with what():
        harness(contender)
        return harness(contender)


def main() -> None:
    model, engine = load_model(Path("artifacts/weights")), Path(sys.argv[1])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    print(f"{cpu.split(': ')[1]}, PyTorch {torch.__version__}; ms\n")
    print(f"| what | {' | '.join(f'batch {batch}' for batch in BATCHES)} |\n|---|{'---|' * len(BATCHES)}", flush=True)
    found: dict[str, list[float]] = {}
    for batch in BATCHES:
        ways = ways_of(model, batch, engine)
        rounds = [{name: way() for name, way in ways.items()} for _ in range(1 + ROUNDS)]
        for name in ways:  # the first round warms up
            found.setdefault(name, []).append(median(each[name] for each in rounds[1:]))
    for name, times in found.items():
        print(f"| {name} | {' | '.join(f'{one:.3f}' for one in times)} |")


if __name__ == "__main__":
    main()

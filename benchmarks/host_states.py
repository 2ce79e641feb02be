"""How a virtual machine's host slows what is launched much, while the GPU computes as fast as ever.

`python benchmarks/host_states.py 150` on a GPU, for 150 seconds: three small pieces of work and then PyTorch eager
(ResNet-50 of random weights, batch 1), over and over. Where a launch takes over 1.2 times what it mostly does, the host
is called slow. The pace of a race (`enginery/pace.py`) joins the first and the last piece.
"""

import sys
import time
from collections.abc import Callable
from statistics import median

import pandas as pd
import torch
import torchvision

ATTEMPTS, TURN, SLOW = 3, 0.075, 1.2


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    model, image = torchvision.models.resnet50().eval().cuda(), torch.randn(1, 3, 224, 224).pin_memory()
    number, matrix = torch.zeros(1, device="cuda"), torch.rand(2048, 2048, device="cuda")

    def launching() -> float:
        torch.cuda.synchronize()
        return seconds(lambda: number.add_(1.0), 100)

    def in_python() -> float:
        return seconds(lambda: sum(i * i for i in range(3000)), 1)

    def multiplying() -> float:
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        for _ in range(20):
            torch.mm(matrix, matrix)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000 / 20

    def eager() -> object:
        return model(image.cuda(non_blocking=True)).cpu()

    pieces = {"a launch, us": launching, "Python alone, us": in_python, "a product, us": multiplying}
    rows = []
    with torch.inference_mode():
        seconds(eager, 30)
        end = time.perf_counter() + float(sys.argv[1])
        while time.perf_counter() < end:
            row = {name: 1e6 * min(piece() for _ in range(ATTEMPTS)) for name, piece in pieces.items()}
            rows.append(row | {"eager, ms": turn(eager)})
    readings = pd.DataFrame(rows)
    launch = readings["a launch, us"]
    host = (launch > SLOW * launch.median()).map({False: "as mostly", True: "slow"}).rename("host")
    table = readings.groupby(host).median().assign(readings=readings.groupby(host).size())
    print(table.to_markdown(floatfmt=".2f"))


def seconds(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times


def turn(eager: Callable[[], object]) -> float:
    eager()
    taken, end = [], time.perf_counter() + TURN
    while time.perf_counter() < end:
        taken.append(1000 * seconds(eager, 1))
    return median(taken)


if __name__ == "__main__":
    main()

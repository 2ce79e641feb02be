"""Show how a virtual machine's host slows programs with many launches while the GPU computes as fast as before.

`python benchmarks/gpu/host_states.py 150` runs on a GPU for 150 seconds: three small pieces of work and then PyTorch
eager (ResNet-50 with random weights, batch 1), over and over. The host is called slow when a launch takes over 1.2
times its median. The machine pace of a race (`enginewright/measure/contenders.py`) joins the first and the last piece.
"""

import sys
import time

import numpy as np
import pandas as pd
import torchvision

from enginewright.core.params.build import EAGER
from enginewright.measure.contenders import launch_timer, product_timer, pytorch_contender
from enginewright.measure.timing import fastest, median_seconds, take_turn

TURN, SLOW = 0.075, 1.2


def main() -> None:
    image = np.random.default_rng(0).normal(0, 1, (1, 3, 224, 224)).astype(np.float32)
    eager = pytorch_contender(torchvision.models.resnet50().eval(), EAGER, "cuda", True, {"input": image})
    pieces = {"a launch, us": launch_timer(), "Python alone, us": in_python, "a product, us": product_timer()}
    rows, end = [], time.perf_counter() + float(sys.argv[1])
    while time.perf_counter() < end:
        row = {name: 1e6 * fastest(piece) for name, piece in pieces.items()}
        rows.append(row | {"eager, ms": 1000 * median_seconds(take_turn(eager, TURN))})
    readings = pd.DataFrame(rows)
    launch = readings["a launch, us"]
    host = (launch > SLOW * launch.median()).map({False: "as mostly", True: "slow"}).rename("host")
    table = readings.groupby(host).median().assign(readings=readings.groupby(host).size())
    print(table.to_markdown(floatfmt=".2f"))


def in_python() -> float:
    started = time.perf_counter()
    sum(i * i for i in range(3000))
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

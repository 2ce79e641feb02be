"""Compare a bare CUDA graph of a model that `torch.compile` tuned with a call of that model.

`python benchmarks/gpu/max_autotune.py 8` runs on a GPU for batch 8, after `dvc repro weights`. Tuning takes minutes.
The same kernels in fp16 and channels last run in a CUDA graph of this script, as `mode="max-autotune"` replays them
itself, and as Enginewright's harness calls that. `queued` calls wait for nothing, so their Python is hidden behind the
GPU's work. `one by one` calls wait for the last one, so the Python between two events counts.
"""

import copy
import sys
from functools import partial
from pathlib import Path

import torch
from bare_loop import captured, harness, one_by_one, queued

from enginewright.measure.contenders import pytorch_contender
from enginewright.model.checkpoint import load_model


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    weights = load_model(Path("artifacts/weights"))
    model = copy.deepcopy(weights).cuda().half().to(memory_format=torch.channels_last)
    images = torch.randn(int(sys.argv[1]), 3, 224, 224)
    placed = images.cuda().half().contiguous(memory_format=torch.channels_last)
    print(f"PyTorch {torch.__version__}\n\n| batch {len(images)} | queued, ms | one by one, ms |\n|---|---|---|")
    with torch.inference_mode():
        for name, mode, replayed in (
            ("a bare graph of the tuned kernels", "max-autotune-no-cudagraphs", captured),
            ("as torch.compile replays them", "max-autotune", lambda call: call),
        ):
            torch._dynamo.reset()
            tuned = torch.compile(model, mode=mode, dynamic=False)
            call = replayed(partial(tuned, placed))
            queued(call)  # warms up, and tunes the second variant
            print(f"| {name} | {queued(call):.3f} | {one_by_one(call):.3f} |", flush=True)
    torch._dynamo.reset()
    ours = pytorch_contender(weights, "max_autotune+channels_last+fp16", "cuda", True, {"input": images.numpy()})
    harness(ours)
    print(f"| as the harness calls that, images in float32 | - | {harness(ours):.3f} |")


if __name__ == "__main__":
    main()

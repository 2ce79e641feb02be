"""Make the baselines of a race that PyTorch runs, in several ways: each is a call that runs one inference."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import CUDA_GRAPH, EAGER, TORCH_TENSORRT, Baseline
from enginewright.core.params.samples import Preprocessing
from enginewright.data.feeds import Feeds, load_arrays
from enginewright.data.preprocessing import in_layout
from enginewright.engine.record import RECORD, EngineRecord
from enginewright.measure.benchmark import peak_of
from enginewright.measure.records import PeakMemory
from enginewright.measure.timing import Bind, Contender, fastest, seconds_of_one
from enginewright.model.checkpoint import Tensors, call_model, load_model
from enginewright.model.user_code import USER_ERRORS, describe_user_error

Model = Callable[[Tensors], Tensors]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
WARM_UP_CALLS = 3


class OfPixels(nn.Module):
    """A model that normalizes bytes itself, in a single step on its device."""

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, model: nn.Module, how: Preprocessing) -> None:
        super().__init__()
        self.model, shape = model, (-1,) if how.layout == "nhwc" else (-1, 1, 1)
        mean, std = (torch.tensor(values).reshape(shape) for values in (how.mean, how.std))
        self.register_buffer("scale", 1 / (how.divide_by * std))
        self.register_buffer("shift", -mean / std)

    def forward(self, *given: torch.Tensor, **named: torch.Tensor) -> Any:
        return self.model(*map(self._floats, given), **{name: self._floats(one) for name, one in named.items()})

    def _floats(self, one: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self.shift, one.to(self.scale.dtype), self.scale) if one.dtype == torch.uint8 else one


def bind_pytorch(model: nn.Module, baseline: Baseline, record: EngineRecord) -> Bind:
    """Return what binds the feeds of an engine to a model. Of one that takes pixels the model gets the same bytes, with
    their channels where it has them, and normalizes them: else it would copy four times as much, and compute less."""
    how, layout, device = record.preprocessing, record.build.pixels, record.target.device
    if how is None or layout is None:
        return partial(pytorch_contender, model, baseline, device, record.build.tf32)
    whole, own = OfPixels(model, how), how.layout

    def bind(feeds: Feeds) -> Contender:
        moved = {name: in_layout(one, layout, own) if one.ndim == 4 else one for name, one in feeds.items()}
        return pytorch_contender(whole, baseline, device, record.build.tf32, moved)

    return bind


def pytorch_contender(model: nn.Module, baseline: Baseline, device: str, tf32: bool, feeds: Feeds) -> Contender:
    """Return a call that runs the model on `feeds` in the way that the baseline's name says. On a GPU it has the same
    copies, pinned memory, clock and arithmetic as the engine that it races."""
    words = baseline.split("+")
    dtype = next((DTYPES[word] for word in words if word in DTYPES), torch.float32)
    layout = torch.channels_last if "channels_last" in words else torch.contiguous_format
    own = copy.deepcopy(model).to(device, dtype).to(memory_format=layout)
    inputs = {name: torch.tensor(array) for name, array in feeds.items()}
    inputs = {name: one.contiguous(memory_format=layout) if one.ndim == 4 else one for name, one in inputs.items()}

    def cast_and_run(given: Tensors) -> Tensors:
        typed = {name: one.to(dtype) if one.is_floating_point() else one for name, one in given.items()}
        return call_model(own, typed)

    # torch.compile (of PyTorch 2.15) compiles a code object for eight shapes, and runs the ninth as eager: so each
    # contender has its own.
    cast_and_run.__code__ = cast_and_run.__code__.replace()
    run = _with_baseline_in_errors(_compiled(cast_and_run, words, tf32), baseline)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        return _on_gpu(run, {name: one.pin_memory() for name, one in inputs.items()}, replay=CUDA_GRAPH in words)

    def call() -> None:
        with torch.inference_mode():
            run(inputs)

    return call


def _with_baseline_in_errors(run: Model, baseline: Baseline) -> Model:
    """Name the baseline in an error of the model. One that runs in float32 may fail in another type, compiled, or on a
    GPU, for example because of a constant that its forward makes."""

    def checked(given: Tensors) -> Tensors:
        try:
            return run(given)
        except EnginewrightError:
            raise
        except USER_ERRORS as error:
            shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in given.items())
            raise EnginewrightError(
                f"benchmark.baselines: the model fails as {baseline} on {shapes}; mend it, or drop this baseline: "
                f"{describe_user_error(error)}"
            ) from None

    return checked


def _compiled(run: Model, words: Sequence[str], tf32: bool) -> Model:
    """Compile the model for one fixed shape, because an engine is tuned for one too."""
    if TORCH_TENSORRT in words:
        # Its documents begin with torch.compile: a user changes one line. Without pass_through_build_failures, a part
        # that TensorRT cannot build would run in PyTorch, and be timed under TensorRT's name.
        options: dict[str, Any] = {"disable_tf32": not tf32, "pass_through_build_failures": True}
        return torch.compile(run, dynamic=False, backend=TORCH_TENSORRT, options=options)
    mode = "max-autotune" if "max_autotune" in words else None
    return torch.compile(run, dynamic=False, mode=mode) if mode or "compile" in words else run


def _on_gpu(run: Model, pinned: Tensors, replay: bool) -> Callable[[], float]:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    placed = {name: one.to("cuda") for name, one in pinned.items()}  # the first calls are before the first copy
    launch = _captured(lambda: run(placed)) if replay else lambda: run(placed)
    with torch.inference_mode():
        hosts = {name: torch.empty_like(one, device="cpu", pin_memory=True) for name, one in launch().items()}

    def call() -> float:
        with torch.inference_mode():
            for name, one in pinned.items():
                placed[name].copy_(one, non_blocking=True)
            before.record()
            outputs = launch()
            after.record()
            for name, host in hosts.items():
                host.copy_(outputs[name], non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return float(before.elapsed_time(after)) / 1000

    return call


def _captured(work: Callable[[], Tensors]) -> Callable[[], Tensors]:
    """Capture the kernels of `work` into a CUDA graph, which reads and writes the same memory each time."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):  # libraries must choose their kernels before the capture
            work()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.inference_mode(), torch.cuda.graph(graph):
        result = work()

    # The graph has only the addresses of the weights. This default keeps the model: else the next capture frees them.
    def replay(_kept: Callable[[], Tensors] = work) -> Tensors:
        graph.replay()
        return result

    return replay


# The machine pace is the time of a fixed piece of work, before and after each round of a race. A host may move a
# virtual machine's cores nearer to each other or further apart, or share them with others; a clock may drop. That slows
# some contenders by a quarter and others hardly, so only rounds at the same pace are comparable.

HANDOVERS, ELEMENTS_PER_THREAD = 20, 32768  # PyTorch gives a thread no fewer elements
LAUNCHES = 100
MATRIX, PRODUCTS = 2048, 20  # a product of smaller matrices takes as long as its launch


def measure_pytorch(feeds: Path, weights: Path, engine: Path, threads: int) -> PeakMemory:
    torch.set_num_threads(threads)
    record = EngineRecord.read(engine / RECORD)
    return peak_of(bind_pytorch(load_model(weights), EAGER, record)(load_arrays(feeds)), record.target.device)


def pace_meter(device: str, threads: int) -> Callable[[], float]:
    """Return a function that reads the machine pace: the seconds of one unit of the work, less on a faster machine. On
    a CPU, that is the handover of small jobs to all threads, which is what small layers spend their time on. On a GPU,
    a geometric mean shows a change of the host or of the GPU by the same share, whichever is the faster."""
    if device == "cuda":
        host, gpu = launch_timer(), product_timer()
        return lambda: math.sqrt(fastest(host) * fastest(gpu))
    numbers = torch.zeros(ELEMENTS_PER_THREAD * threads)
    return lambda: fastest(lambda: seconds_of_one(lambda: numbers.add_(1.0), HANDOVERS))


def launch_timer() -> Callable[[], float]:
    number = torch.zeros(1, device="cuda")

    def once() -> float:
        torch.cuda.synchronize()  # a launch into a full queue would wait
        return seconds_of_one(lambda: number.add_(1.0), LAUNCHES)

    return once


def product_timer() -> Callable[[], float]:
    matrix = torch.rand(MATRIX, MATRIX, device="cuda")
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def once() -> float:
        before.record()
        for _ in range(PRODUCTS):
            torch.mm(matrix, matrix)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000 / PRODUCTS

    return once

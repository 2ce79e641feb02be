"""The sections `validation`, `benchmark`, `cluster` and `timeouts`."""

from typing import Annotated

from pydantic import AfterValidator, Field

from enginewright.core.params.section import Section

ONNXRUNTIME, EAGER, CUDA_GRAPH, TORCH_TENSORRT = "onnxruntime", "eager", "cuda_graph", "torch_tensorrt"
LAUNCHES = (EAGER, "compile", "max_autotune", CUDA_GRAPH, TORCH_TENSORRT)
NUMBER_FORMATS = ("fp16", "bf16")
LAYOUTS = ("channels_last",)


def _possible_baseline(name: str) -> str:
    """Refuse all but `onnxruntime` and words joined by +: at most one for launching, layout and number format each."""
    words, kinds = name.split("+"), (LAUNCHES, NUMBER_FORMATS, LAYOUTS)
    each_known = all(any(word in kind for kind in kinds) for word in words)
    if name == ONNXRUNTIME or (each_known and all(sum(word in kind for word in words) <= 1 for kind in kinds)):
        return name
    raise ValueError(
        f"'{name}' is no baseline: write {ONNXRUNTIME}, or join with + at most one of {', '.join(LAUNCHES)}, "
        f"one of {', '.join(NUMBER_FORMATS)}, and {', '.join(LAYOUTS)}"
    )


Baseline = Annotated[str, AfterValidator(_possible_baseline)]


class BenchmarkParams(Section):
    batches: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(1, 4, 8, 16), min_length=1, description="within build.profile"
    )
    seconds: float = Field(
        default=1.5,
        gt=0,
        description="per contender and batch size; up to twice as long while others slow the machine down, and long "
        "enough for six rounds where calls are slow",
    )
    baselines: tuple[Baseline, ...] = Field(
        default=(EAGER,),
        min_length=1,
        description="PyTorch as people use it: eager, compile, max_autotune or cuda_graph (GPU), each also in "
        "channels_last (its faster memory layout), fp16 or bf16, such as eager+channels_last+fp16; torch_tensorrt "
        "(GPU), which is torch.compile with TensorRT; or onnxruntime, which runs the float32 graph",
    )
    requests: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(
        default=(1, 2), min_length=1, description="throughput: how many requests are in flight at once"
    )
    confidence: float = Field(default=0.95, gt=0.5, lt=1, description="of the intervals around ratios")
    seed: int = Field(default=0, ge=0, description="of the order of contenders and of the bootstrap")


class ValidationParams(Section):
    spot_samples: int = Field(
        default=64,
        ge=1,
        description="images that are run again at batch 1, at the largest batch and at an odd one between",
    )
    must_be_sure: bool = Field(
        default=False, description="true: fail, too, where images are too few to tell, which is neither kept nor broken"
    )
    must_know: bool = Field(
        default=True,
        description="false: pass, too, where PyTorch itself is no better than if samples got each other's answers",
    )


class ClusterParams(Section):
    """Where stages spread their work. No stage lists it in dvc.yaml: results differ by no more than rounding."""

    address: str | None = Field(
        default=None, description="HOST:PORT of the head of a Ray cluster, or auto; null: this machine alone"
    )
    resource: str | None = Field(
        default=None, description="use only the nodes that have this resource of Ray's; null: all"
    )
    cores: int = Field(
        default=1,
        ge=1,
        description="of each task: more where a model takes much memory; sums may then differ in their last bits",
    )


YEAR = 31_536_000.0  # of seconds; the kernel's clocks do not count without end
Seconds = Annotated[float, Field(gt=0, le=YEAR)] | None


class TimeoutParams(Section):
    """How long stages may take. No stage lists it in dvc.yaml: it changes no result."""

    samples: Seconds = None
    weights: Seconds = None
    export: Seconds = None
    simplify: Seconds = None
    reference: Seconds = None
    calibrate: Seconds = None
    rescue: Seconds = None
    search: Seconds = None
    mix: Seconds = None
    convert: Seconds = None
    build: Seconds = None
    validate_: Seconds = Field(default=None, alias="validate")  # pydantic's models have a method of that name
    benchmark: Seconds = None
    race: Seconds = None
    trace: Seconds = None
    report: Seconds = None

    def of(self, stage: str) -> float | None:
        """Return the seconds of a stage, or None without a limit."""
        seconds: float | None = self.model_dump(by_alias=True).get(stage)
        return seconds

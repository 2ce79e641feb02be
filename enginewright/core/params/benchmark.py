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


class BenchmarkParams(Section, place="benchmark"):
    batches: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    seconds: float = Field(gt=0)
    baselines: tuple[Baseline, ...] = Field(min_length=1)
    requests: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(min_length=1)
    confidence: float = Field(gt=0.5, lt=1)
    seed: int = Field(ge=0)

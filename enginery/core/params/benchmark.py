"""The section `benchmark`."""

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from enginery.core.params.section import Section

ONNXRUNTIME, EAGER = "onnxruntime", "eager"
LAUNCHES = (EAGER, "compile", "max_autotune", "cuda_graph")
NUMBERS = ("fp16", "bf16")
LAYOUTS = ("channels_last",)


def _possible_baseline(name: str) -> str:
    """`onnxruntime`, or words joined by +: how PyTorch launches, its memory layout, its numbers; at most one each."""
    words = name.split("+")
    kinds = (LAUNCHES, NUMBERS, LAYOUTS)
    if name != ONNXRUNTIME:
        unknown = [word for word in words if not any(word in kind for kind in kinds)]
        if unknown or any(sum(word in kind for word in words) > 1 for kind in kinds):
            raise ValueError(
                f"'{name}' is no baseline: write {ONNXRUNTIME}, or join with + at most one of {', '.join(LAUNCHES)}, "
                f"one of {', '.join(NUMBERS)}, and {', '.join(LAYOUTS)}"
            )
    return name


Baseline = Annotated[str, AfterValidator(_possible_baseline)]


class BenchmarkParams(Section):
    place: ClassVar[str] = "benchmark"

    batches: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    seconds: float = Field(gt=0)
    baselines: tuple[Baseline, ...] = Field(min_length=1)
    requests: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(min_length=1)
    confidence: float = Field(gt=0.5, lt=1)
    seed: int = Field(ge=0)

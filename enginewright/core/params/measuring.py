from typing import Annotated, Self

from pydantic import AfterValidator, Field

from enginewright.core.params.section import PARAMS_FILE, Section, read_yaml

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


class ValidationParams(Section, place="validation"):
    spot_samples: int = Field(ge=1)
    must_be_sure: bool = False
    must_know: bool = True


class ClusterParams(Section, place="cluster"):
    """Where stages spread their work. No stage lists it in dvc.yaml: results differ by no more than rounding."""

    address: str | None = None
    resource: str | None = None
    cores: int = Field(default=1, ge=1)

    @classmethod
    def read_or_default(cls) -> Self:
        """Read the section, which older projects do not have."""
        return cls.read() if cls.place in (read_yaml(PARAMS_FILE) or {}) else cls()


YEAR = 31_536_000.0  # of seconds; the kernel's clocks do not count without end
Seconds = Annotated[float, Field(gt=0, le=YEAR)] | None


class TimeoutParams(Section, place="timeouts"):
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

    @classmethod
    def of_stage(cls, stage: str) -> float | None:
        """Return the seconds of a stage, or None without a limit. Older projects lack the section."""
        if stage not in {field.alias or name for name, field in cls.model_fields.items()}:
            return None
        given = read_yaml(PARAMS_FILE)
        known = cls.read() if isinstance(given, dict) and cls.place in given else cls()
        seconds: float | None = known.model_dump(by_alias=True)[stage]
        return seconds

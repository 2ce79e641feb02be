"""The JSON document of the stage validate."""

from enginery.core.record import Record


class Errors(Record):
    """How far `got` lies from `wanted`, over all samples; of several outputs, the worst of each figure.

    `top1_agreement` is None where no output is one of classes.
    """

    max_abs: float
    mean_abs: float
    relative: float
    cosine: float
    worst_cosine: float
    top1_agreement: float | None
    nonfinite: int


class Spot(Record):
    """The engine at one batch size: against PyTorch, and as `drift` against its own logits on the full set."""

    batch: int
    samples: int
    errors: Errors
    accuracy: float | None
    drift: float


class Resized(Record):
    """The engine against its graph at another image size."""

    sizes: dict[str, int]
    errors: Errors


class Spread(Record):
    """Single images, in order, at these shares of them: most differ little, and what matters is how the worst do.

    `margin_kept` is the engine's lead of PyTorch's answer over the next best, as a share of PyTorch's own: 1 is
    unchanged, below 0 is another answer. Empty where there is only one class.
    """

    shares: tuple[float, ...]
    relative_error: tuple[float, ...]
    margin_kept: tuple[float, ...]


class Validation(Record):
    precision: str
    reference: str  # PyTorch, or ONNX Runtime, which runs the file that the model came as
    engine: str  # the identity of the engine that was judged
    samples: int
    reference_accuracy: float | None
    graph_accuracy: float | None
    engine_accuracy: float | None
    accuracy_drop: float | None
    engine_against_pytorch: Errors
    graph_against_pytorch: Errors
    engine_against_graph: Errors
    spots: tuple[Spot, ...]
    resized: tuple[Resized, ...]
    loss_comes_from: str
    broken: tuple[str, ...]
    spread: Spread

    @property
    def passed(self) -> bool:
        return not self.broken

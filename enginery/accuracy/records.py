"""The records in the JSON document of the stage validate."""

from enginery.core.record import Record


class Errors(Record):
    """The errors of one set of outputs against another, over all samples; the worst output counts for each figure.
    `top1_agreement` is None if no output holds a score for each class."""

    max_abs: float
    mean_abs: float
    relative: float
    cosine: float
    worst_cosine: float
    top1_agreement: float | None
    nonfinite: int


class Spot(Record):
    """A check of the engine at one batch size: `errors` against PyTorch, `drift` against its own full-set outputs."""

    batch: int
    samples: int
    errors: Errors
    accuracy: float | None
    drift: float


class Resized(Record):
    """The errors of the engine against its graph at another image size."""

    sizes: dict[str, int]
    errors: Errors


class Spread(Record):
    """The distribution of errors over single images, as quantiles at `shares`: most images differ little, a few more.
    `margin_kept` compares margins, the lead of PyTorch's answer over the next best class: the engine's margin divided
    by PyTorch's. 1 is unchanged, below 0 is another answer. It is empty if there is only one class."""

    shares: tuple[float, ...]
    relative_error: tuple[float, ...]
    margin_kept: tuple[float, ...]


class Validation(Record):
    """The accuracy of one engine, and the thresholds that it broke."""

    precision: str
    reference: str  # what made the reference outputs: PyTorch, or ONNX Runtime if the model is a user's ONNX file
    engine: str  # the identity of the engine that was validated
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

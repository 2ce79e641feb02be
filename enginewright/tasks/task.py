"""Describe what a task says of a model: what its outputs mean, how good they are, and how an answer is shown."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from enginewright.core.facts import Known
from enginewright.core.params.model import NO_SCORES, BoxesParams
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import figure
from enginewright.data.feeds import Outputs, Places

if TYPE_CHECKING:  # Pillow is imported where images are read or drawn, as engines run without it
    from PIL import Image


Shapes = Mapping[str, Sequence[object]]  # of outputs, by name; the size of an axis that varies is text
Truth = NDArray[Any]  # what is known of all samples of a set: labels, masks, targets or scores
Statistics = NDArray[np.float64]  # numbers of each sample, or of each pair of samples, that make a metric
Weights = NDArray[np.float64]  # a row for each set that is drawn from the samples: how often it holds each of them
NONE = np.empty(0)
TOP_BESIDE = 2  # guesses, of two answers beside each other


@dataclass(frozen=True)
class Metric:
    """A figure of a whole set. It is made of statistics of single samples, so that its interval can be found by
    drawing samples anew: `of` returns the metric of each of several sets. Statistics are an array with a row for each
    sample, or whatever else knows its number of samples, as a detector's, whose images have any number of boxes."""

    name: str
    of: Callable[[Any, Weights], NDArray[np.float64]]
    is_share: bool = False  # of the samples that are right: each has one statistic, which is 0 or 1
    in_steps: bool = False  # whether it moves only where an answer is lost or gained, which few samples show
    unit: str = "%"  # or the empty string for plain numbers
    higher_is_better: bool = True

    def over(self, statistics: Sized) -> float:
        """Return the metric of all samples, each of which counts once."""
        return float(self.of(statistics, np.ones((1, len(statistics))))[0])

    def written(self, value: float) -> str:
        return figure(value, self.unit)


class Shown(NamedTuple):
    """An answer for one sample, as a line for people and as fields for programs."""

    text: str
    fields: dict[str, Any]
    top: int = 0  # how many of several guesses the line has at most
    areas: NDArray[np.integer[Any]] | None = None  # the class of each pixel


class Task(Protocol):
    """A task is made of `model.scores`, which names the output that it reads, and the names of the classes. A class of
    your own derives from this one: then it needs `metrics`, `lacking`, `reads`, `measure` and `show`."""

    metrics: Sequence[Metric]  # the first is what metric_drop bounds
    agreement: str | None = None  # what the share of same answers as PyTorch's is called, if answers can be the same
    answers: str = ""  # of which things in a sample it is a share, such as "the pixels of "
    together: NDArray[np.int64] | None = None  # a number for each sample: answers to those of one depend on each other
    in_pairs: bool = False  # whether an answer is compared with that of each other sample
    lacking: str  # why metrics could not be measured, such as "no labels"
    known: Known = Known(labels=True)
    program: str = "answer"  # the name of the example in a bundle
    best_first: bool = False  # whether answers are shown in their order, those to each question

    def __init__(self, output: str | None, class_names: Sequence[str]) -> None: ...

    def given(self, boxes: BoxesParams | None, preprocessing: Preprocessing | None) -> Self:
        """Return the task with what else params.yaml says of it: how boxes are read, and how images are prepared."""
        return self

    def reads(self, shapes: Shapes) -> str | None:
        """Return the output that the task reads, or None if there is none or it is not clear which."""
        ...

    def misfit(self, shapes: Shapes, truth: Truth | None) -> str | None:
        """Say what is wrong if the outputs cannot be meant for this task, or do not fit what is known of the samples.
        The sentence begins with the parameter to change."""
        return None

    def knowing(self, truth: Truth | None, places: Places) -> Self:
        """Return the task for outputs of these samples alone. It changes where answers have a meaning only beside those
        for other samples, of which `truth` says which ones, as those to the same question."""
        return self

    def measure(self, outputs: Outputs, truth: Truth, places: Places) -> Sequence[Sized]:
        """Return the statistics of each metric, or nothing if the outputs hold no answers."""
        ...

    def agree(self, reference: Outputs, got: Outputs) -> Statistics | None:
        """Return for each sample the share of its answer that is the same, or None if that has no meaning."""
        return None

    def comparable(self, reference: Outputs, got: Outputs) -> tuple[Outputs, Outputs]:
        """Return both outputs so that errors between them can be measured number by number."""
        return reference, got

    def in_graph(self, shapes: Shapes) -> dict[str, Any]:
        """Return what a graph needs to choose among the answers itself, or nothing if it does not."""
        return {}

    def as_engine(self, outputs: Outputs) -> Outputs:
        """Return outputs of the model as those of an engine that chooses among the answers itself, if it does."""
        return outputs

    def leads_kept(self, reference: Outputs, got: Outputs) -> NDArray[np.float64]:
        """Return for each sample how much of the lead of PyTorch's answer over the next best is left, if it has one."""
        return NONE

    def doubt(self, shapes: Shapes) -> str:
        """Say, for the end of a sentence, what a low agreement could come from besides the engine."""
        return ""

    def show(self, outputs: Outputs, top: int) -> Iterator[Shown]:
        """Return the answer for each sample of a batch, with at most `top` guesses where there are several."""
        ...

    def beside(self, reference: Outputs, got: Outputs, place: int, words: Callable[[int], str]) -> tuple[str, str]:
        """Return the answers of PyTorch and of the engine for one text, for people. `words` has the text at a place."""
        return answer_at(self, reference, place).text, answer_at(self, got, place).text

    def in_image(self, shown: Shown, how: Preprocessing, size: tuple[int, int]) -> Shown:
        """Return an answer for an image as it is, and not as it was prepared; `size` is its width and height."""
        return shown

    def draw(self, image: "Image.Image", shown: Shown) -> "Image.Image":
        """Return a copy of the image with the answer."""
        from enginewright.tasks.pictures import with_caption

        return with_caption(image, shown.text)


def answer_at(task: Task, outputs: Outputs, place: int) -> Shown:
    """Return the answer for one sample of many."""
    alone = {name: values[place : place + 1] for name, values in outputs.items()}
    return next(iter(task.show(alone, TOP_BESIDE)))


def mean(statistics: Statistics, weights: Weights) -> NDArray[np.float64]:
    """Return the mean of the first statistic in each set."""
    means: NDArray[np.float64] = weights @ statistics.reshape(len(statistics), -1)[:, 0] / weights.sum(axis=1)
    return means


class OneOutput(Task):
    """The base of tasks that read one output: the one that the user names, or the only one of the right shape."""

    def __init__(self, output: str | None, class_names: Sequence[str]) -> None:
        self._asked, self._names = output, class_names

    @abstractmethod
    def candidates(self, shapes: Shapes) -> list[str]:
        """Return the outputs of the right shape."""

    def reads(self, shapes: Shapes) -> str | None:
        possible = [name for name in self.candidates(shapes) if self._asked in (None, name)]
        return possible[0] if len(possible) == 1 else None

    def read_from(self, outputs: Outputs) -> str | None:
        return self.reads({name: values.shape for name, values in outputs.items()})

    def unread(self, shapes: Shapes, what: str) -> str | None:
        """Say why no output is read, if there is not exactly one that has `what`. The user may expect none."""
        if self._asked == NO_SCORES or self.reads(shapes):
            return None
        if self._asked:
            return f"model.scores: '{self._asked}' is no output with {what}"
        if candidates := self.candidates(shapes):
            return f"model.scores: outputs {', '.join(candidates)} may each be the one with {what}: name it"
        return f"task: no output has {what}; name another task, or set model.scores: {NO_SCORES} to judge errors alone"

    def with_classes(self, shapes: Shapes, axes: int) -> list[str]:
        """Return the outputs of so many axes whose second has each class, or two or more if these are unknown."""
        return [
            name
            for name, shape in shapes.items()
            if len(shape) == axes and isinstance(shape[1], int) and shape[1] > 1 and len(self._names) in (0, shape[1])
        ]

"""The base of tasks that read one output: the one that the user names, or the only one of the right shape."""

from abc import abstractmethod
from collections.abc import Sequence

from enginewright.core.params.model import NO_SCORES
from enginewright.data.feeds import Outputs
from enginewright.tasks.task import Shapes, Task


class OneOutput(Task):
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

    def unread(self, shapes: Shapes, wanted: str) -> str | None:
        """Say why no output is read, if there is not exactly one that may be `wanted`. The user may expect none."""
        if self._asked == NO_SCORES or self.reads(shapes):
            return None
        if self._asked:
            return f"model.scores: '{self._asked}' is no output with {wanted}"
        if candidates := self.candidates(shapes):
            return f"model.scores: outputs {', '.join(candidates)} may each be the one with {wanted}: name it"
        return (
            f"task: no output has {wanted}; name another task, or set model.scores: {NO_SCORES} to judge errors alone"
        )

    def with_classes(self, shapes: Shapes, axes: int) -> list[str]:
        """Return the outputs of so many axes whose second has each class, or two or more if these are unknown."""
        return [
            name
            for name, shape in shapes.items()
            if len(shape) == axes and isinstance(shape[1], int) and shape[1] > 1 and len(self._names) in (0, shape[1])
        ]

"""Find the task that params.yaml names."""

import difflib
import importlib
from collections.abc import Callable, Sequence

from enginewright.core import facts as tasks
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import TASKS
from enginewright.core.params.model import BoxesParams
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import first_line
from enginewright.core.user_files import look_in_folders_above
from enginewright.tasks.classification import Classification
from enginewright.tasks.detection import Detection
from enginewright.tasks.embedding import Embedding
from enginewright.tasks.ranking import Ranking
from enginewright.tasks.regression import Regression
from enginewright.tasks.segmentation import Segmentation
from enginewright.tasks.task import Shapes, Task, Truth


def task_of(
    name: str,
    output: str | None = None,
    class_names: Sequence[str] = (),
    boxes: BoxesParams | None = None,
    preprocessing: Preprocessing | None = None,
) -> Task:
    """Return the task `name`, which reads `output`, or else the output that has the right shape. `boxes` says how
    those of a detector are read, and `preprocessing` the size of the images that they lie in."""
    match name:
        case tasks.DETECTION:
            return Detection(output, class_names, boxes, preprocessing.crop if preprocessing else None)
        case "classification":
            return Classification(output, class_names)
        case "segmentation":
            return Segmentation(output, class_names)
        case "embedding":
            return Embedding(output, class_names)
        case "regression":
            return Regression(output, class_names)
        case "ranking":
            return Ranking(output, class_names)
        case _:
            return _own_task(name)(output, class_names)


def misfit_of(task: Task, shapes: Shapes, truth: Truth | None, class_names: Sequence[str]) -> str | None:
    """Say how the outputs do not fit the task, which outputs there are, and which other tasks they would fit."""
    if not (why := task.misfit(shapes, truth)):
        return None
    returned = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
    fitting = [
        other
        for other in TASKS
        if not isinstance(task, type(it := task_of(other, None, class_names))) and it.reads(shapes)
    ]
    others = f", which would fit task: {' or '.join(fitting)}" if fitting else ""
    return f"{why}. The model returns {returned}{others}"


def _own_task(name: str) -> Callable[[str | None, Sequence[str]], Task]:
    module_name, _, attribute = name.partition(":")
    look_in_folders_above()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's own code may raise anything
        why = first_line(error) or type(error).__name__
        raise EnginewrightError(f"task: {module_name} cannot be imported: {why}") from None
    found: Callable[[str | None, Sequence[str]], Task] | None = getattr(module, attribute, None)
    if not (isinstance(found, type) and Task in found.__mro__):
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise EnginewrightError(
            f"task: {module_name} has no class '{attribute}' derived from enginewright.tasks.task.Task{hint}"
        )
    return found

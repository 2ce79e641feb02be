"""Find the task that params.yaml names."""

import importlib
from collections.abc import Sequence

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import TASKS, Known
from enginewright.core.params.model import BoxesParams
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import first_line, suggestion
from enginewright.core.user_files import look_in_folders_above
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
    return class_of(name)(output, class_names).given(boxes, preprocessing)


def class_of(name: str) -> type[Task]:
    module_name, _, attribute = TASKS.get(name, name).partition(":")
    look_in_folders_above()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's own code may raise anything
        why = first_line(error) or type(error).__name__
        raise EnginewrightError(f"task: {module_name} cannot be imported: {why}") from None
    found: type[Task] | None = getattr(module, attribute, None)
    if not (isinstance(found, type) and Task in found.__mro__):
        hint = suggestion(attribute, dir(module), otherwise="")
        raise EnginewrightError(
            f"task: {module_name} has no class '{attribute}' derived from enginewright.tasks.task.Task{hint}"
        )
    return found


def known_of(name: str) -> Known:
    """Return what the task wants to be known of samples, without the user's own code."""
    known = (class_of(name) if name in TASKS else Task).known
    return known.model_copy(update={"task": name})


def misfit_of(task: Task, shapes: Shapes, truth: Truth | None, class_names: Sequence[str]) -> str | None:
    """Say how the outputs do not fit the task, which outputs there are, and which other tasks they would fit."""
    if not (why := task.misfit(shapes, truth)):
        return None
    returned = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
    others = [name for name in TASKS if not isinstance(task, class_of(name))]
    fitting = [name for name in others if task_of(name, None, class_names).reads(shapes)]
    return f"{why}. The model returns {returned}" + (
        f", which would fit task: {' or '.join(fitting)}" if fitting else ""
    )

"""The tasks that come with Enginewright, by name; one of the user's own is `package.module:Task`."""

import re

from enginewright.core.record import Record

CLASSIFICATION = "classification"
DETECTION = "detection"
RANKING = "ranking"
TASKS = (CLASSIFICATION, DETECTION, "segmentation", "embedding", "regression", RANKING)
OWN_TASK = re.compile(r"\w+(\.\w+)*:\w+")


class ChosenTask(Record):
    """The task of params.yaml, in a file of its own: params.yaml need not name one."""

    task: str


def is_own(task: str) -> bool:
    return task not in TASKS

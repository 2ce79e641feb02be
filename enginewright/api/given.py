"""The model that `enginewright.build` was given, as the stages get it: from a factory."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SOURCE = f"{__name__}:model"
_given: Any = None


def model() -> Any:
    return copy.deepcopy(_given).cpu()  # so that the caller's stays in the mode and on the device that it is in


@contextmanager
def giving(given: Any) -> Iterator[None]:
    global _given
    _given = given
    try:
        yield
    finally:
        _given = None

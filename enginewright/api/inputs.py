"""Turn what a caller in Python gives into arrays by the names of the model's inputs."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError

Arrays = dict[str, NDArray[Any]]


def example_arrays(model: Any, given: Any) -> Arrays:
    if isinstance(given, Mapping):
        return {str(name): _array(value) for name, value in given.items()}
    values = list(given) if isinstance(given, tuple | list) else [given]
    arguments = inspect.signature(model.forward).parameters.values()
    names = [each.name for each in arguments if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(values) > len(names):
        raise EnginewrightError(f"example_inputs has {len(values)} inputs, and the model's forward takes {len(names)}")
    return {name: _array(value) for name, value in zip(names, values, strict=False)}


def calibration_arrays(given: Any, examples: Arrays) -> Arrays:
    """Return all samples together. What is more in a batch, such as labels, is left out."""
    is_one = hasattr(given, "shape") or isinstance(given, Mapping) or (isinstance(given, tuple) and _are_arrays(given))
    if not is_one and not isinstance(given, Iterable):
        raise EnginewrightError(f"calibration is {type(given).__name__}: give arrays, or batches of them")
    batches = [_batch(each, examples) for each in ([given] if is_one else given)]
    if not batches:
        raise EnginewrightError("calibration has no samples")
    return {name: np.concatenate([batch[name] for batch in batches]) for name in examples}


def _are_arrays(given: Iterable[Any]) -> bool:
    return all(hasattr(each, "shape") for each in given)


def _batch(given: Any, examples: Arrays) -> Arrays:
    if not isinstance(given, Mapping):
        values = list(given) if isinstance(given, tuple | list) else [given]
        given = dict(zip(examples, values, strict=False))
    if missing := [name for name in examples if name not in given]:
        raise EnginewrightError(f"calibration has no {missing[0]}, which example_inputs has")
    batch = {name: _array(given[name]) for name in examples}
    for name, example in examples.items():
        if (got := _kind(batch[name])) != (wanted := _kind(example)):
            raise EnginewrightError(f"calibration: a batch of {name} is {got}, and example_inputs is {wanted}")
    return batch


def _kind(array: NDArray[Any]) -> str:
    """Say what all batches have in common."""
    return f"{array.dtype.name}[{', '.join(['samples', *map(str, array.shape[1:])])}]"


def _array(given: Any) -> NDArray[Any]:
    """Return a tensor of any device, or an array, with floats in the size that engines take."""
    values = (
        given.detach().cpu().float() if hasattr(given, "is_floating_point") and given.is_floating_point() else given
    )
    array = np.asarray(values.cpu() if hasattr(values, "cpu") else values)
    if array.ndim == 0:
        raise EnginewrightError(
            "example_inputs and calibration hold samples along the first axis, and here is one number"
        )
    return array.astype(np.float32) if array.dtype.kind == "f" else array

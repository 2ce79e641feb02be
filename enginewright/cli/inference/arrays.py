"""Answer for arrays: the rows of .npz files that have an array for each input, as a model without images takes them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginewright.cli.inference.answer import Answer, Row
from enginewright.cli.inference.task import require_readable, run_filled
from enginewright.core.errors import EnginewrightError
from enginewright.data.sources.arrays import read_arrays
from enginewright.engine.engine import Engine


class ArraysReader:
    """An engine that takes arrays, whose outputs its task reads."""

    cut = 0  # rows, which texts can be

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._task = engine, require_readable(engine.record, folder)

    def answer(self, rows: Sequence[Row], top: int, draws: bool = False) -> Iterator[Answer]:
        names = [spec.name for spec in self._engine.record.interface.sampled]
        feeds = {name: np.stack([row.arrays[name][row.number] for row in rows]) for name in names}
        shown = self._task.show(run_filled(self._engine, feeds), top)
        yield from (Answer(row, one, None) for row, one in zip(rows, shown, strict=True))


def find_rows(places: Sequence[Path], inputs: Sequence[str]) -> list[Row]:
    """Return the rows of all files, in which the arrays have the names of the inputs."""
    found: list[Row] = []
    for place in places:
        arrays = _arrays_of(place, inputs)
        if found and (other := _shapes(found[0].arrays)) != _shapes(arrays):
            raise EnginewrightError(
                f"a row of {place} is {_shapes(arrays)}, and one of {found[0].file} is {other}: ask for one at a time"
            )
        found += [Row(place, number, arrays) for number in range(len(arrays[inputs[0]]))]
    return found


def _arrays_of(place: Path, inputs: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    wanted = ", ".join(inputs)
    if place.suffix != ".npz":
        raise EnginewrightError(f"{place} is no .npz: the engine takes arrays, one for each input ({wanted})")
    try:
        held = read_arrays(place)
    except EnginewrightError as error:
        raise EnginewrightError(str(error).removeprefix("samples.source: ")) from None
    if not held.keys() >= set(inputs):
        raise EnginewrightError(
            f"{place} needs an array for each input ({wanted}), and has {', '.join(held) or 'none'}"
        )
    arrays = {name: held[name].astype(held[name].dtype.newbyteorder("="), copy=False) for name in inputs}
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if 0 in lengths or len(lengths) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise EnginewrightError(
            f"{place} has {shapes}: each array needs the rows along its first axis, as many as others"
        )
    return arrays


def _shapes(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    return ", ".join(f"{name} {array.shape[1:]}" for name, array in arrays.items())

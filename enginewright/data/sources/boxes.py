"""The known boxes of images, which are moved as the preprocessing moves what is in them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.text import first_few
from enginewright.data.box_rows import COLUMNS, COUNTED, IGNORED, NO_CLASS
from enginewright.data.preprocessing import place

LARGEST = 1e300  # of a number that is a place in an image
BEYOND = 0.01  # of the image's sides, by which a box may lie outside: annotations are rounded
ENOUGH = 0.25  # of a box must be left by the crop; of smaller remains nobody could tell what they are
Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Boxes:
    """Rows of boxes for each image, in its pixels or as `shares` of its width and height."""

    rows: Sequence[Rows]
    where: Callable[[int, int], str]  # says where the box of an image stands, such as in which line of a file
    shares: bool = False
    sizes: Sequence[tuple[int, int] | None] = ()  # width and height of the images as the annotations have them

    def like(self, how: Preprocessing | None) -> Rows:
        """Return the shape of an array that has room for the most boxes in an image: then the truth of any samples can
        be taken from one array. A filling row is 48 bytes."""
        return np.empty((self._most, COLUMNS))

    @cached_property
    def _most(self) -> int:
        return max(map(len, self.rows), default=0)

    def prepare(self, index: int, how: Preprocessing | None, size: tuple[int, int] | None) -> Rows:
        rows = self.rows[index].copy()
        filled = np.full((self._most, COLUMNS), float(NO_CLASS))
        if size is not None and how is not None and len(rows):
            if self.shares:
                rows[:, 1:5] *= [*size, *size]
            self._require_inside(index, rows, size)
            rows = _moved(rows, how, size)
        filled[: len(rows)] = rows
        return filled

    def _require_inside(self, index: int, rows: Rows, size: tuple[int, int]) -> None:
        wanted = self.sizes[index] if self.sizes else None
        if wanted is not None and wanted != size:
            raise EnginewrightError(
                f"samples.source: {self.where(index, 0)} is of an image of {wanted[0]} by {wanted[1]} pixels, and the "
                f"file has {size[0]} by {size[1]}"
            )
        beyond = np.maximum(-rows[:, 1:3], rows[:, 3:5] - size).max(axis=1) > BEYOND * max(size) + 1
        if len(outside := np.flatnonzero(beyond)):
            corners = " ".join(f"{value:g}" for value in rows[outside[0], 1:5])
            raise EnginewrightError(
                f"samples.source: {self.where(index, int(outside[0]))} has a box from corner to corner of {corners}, "
                f"outside its image of {size[0]} by {size[1]} pixels"
            )


def _moved(rows: Rows, how: Preprocessing, size: tuple[int, int]) -> Rows:
    """Return the boxes where the preprocessing brings them, without those that the crop leaves out."""
    scale, shift = (np.array(each * 2, float) for each in place(size, how))
    whole = rows[:, 1:5] * scale + shift
    height, width = how.crop
    left = np.clip(whole, 0, [width, height] * 2)
    share = (left[:, 2:] - left[:, :2]).prod(axis=1) / (whole[:, 2:] - whole[:, :2]).prod(axis=1)
    kind = np.where((rows[:, 5] == COUNTED) & (share < ENOUGH), IGNORED, rows[:, 5])
    return np.asarray(np.column_stack([rows[:, :1], left, kind])[share > 0])


def wrong_box(box: Sequence[float]) -> str | None:
    """Say what is wrong with left, top, width and height."""
    if not all(abs(value) < LARGEST for value in box):  # neither NaN, nor a whole number that no float can hold
        return "has a box that is no numbers"
    return f"has a box of {box[2]:g} by {box[3]:g}, which is no area" if min(box[2:]) <= 0 else None


def require_boxes(path: Path, rows: Sequence[Rows], names: Sequence[str]) -> None:
    """Refuse annotations without a box, and print classes without one: they count in no mAP."""
    counts = Counter(int(number) for each in rows for number in each[:, 0])
    if not counts:
        raise EnginewrightError(
            f"samples.source: {path} has no box in any image, so nothing to find: add boxes, or give images alone"
        )
    if empty := [name for number, name in enumerate(names) if not counts[number]]:
        print(f"MIND: {path} has no box of {len(empty)} of its {len(names)} classes: {first_few(empty, most=3)}")

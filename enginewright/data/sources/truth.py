"""Write beside samples what is known of them besides labels: boxes, masks, numbers, and questions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.core.errors import bad_source
from enginewright.core.facts import COLUMNS, COUNTED, IGNORED, IGNORED_BOX, LABELLED, NO_CLASS, Known
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import first_few
from enginewright.data.preprocessing import pixels_of, place

QUESTIONS = "questions"  # the array that says which samples are answers to one question
LARGEST = 1e300  # of a number that is a place in an image
BEYOND = 0.01  # of the image's sides, by which a box may lie outside: annotations are rounded
ENOUGH = 0.25  # of a box must be left by the crop; of smaller remains nobody could tell what they are
Rows = NDArray[np.float64]


class Truths(Protocol):
    def prepare(self, index: int, how: Preprocessing | None, size: tuple[int, int] | None) -> NDArray[np.generic]:
        """Return what is known of a sample, in an array of one type and shape for all; `size` is that of its image."""
        ...


def truths_of(known: Known, path: Path, arrays: Mapping[str, NDArray[np.generic]], count: int) -> Truths | None:
    """Return what a file of arrays says beside labels, or None if it says nothing."""
    questions = arrays.get(QUESTIONS) if known.questions else None
    if questions is not None and (questions.shape != (count,) or questions.dtype.kind not in "iuU"):
        raise bad_source(
            f"{QUESTIONS} of {path} is {questions.dtype} of shape {questions.shape}; it needs a whole number or a name "
            f"for each of {count} samples"
        )
    if known.array == LABELLED.array or (found := arrays.get(known.array)) is None:
        return None if questions is None else ranked(None, questions)
    if len(found) != count or found.dtype.kind not in known.types or found.ndim not in known.axes or 0 in found.shape:
        raise bad_source(
            f"{known.array} of {path} is {found.dtype} of shape {found.shape}; task {known.task} needs {known.words} "
            f"for each of {count} samples"
        )
    if known.array == "masks":
        return Masks(found, known.ignore)
    if known.array == "boxes":
        return boxes_of_array(path, found)
    rows = found if known.labels else found.astype(np.float64)
    if not np.isfinite(rows).all():
        raise bad_source(f"{known.array} of {path} holds NaN or infinity")
    numbers = rows.reshape(count, -1) if known.array == "targets" else rows
    return ranked(numbers, questions) if known.questions else Numbers(numbers)


@dataclass(frozen=True)
class Boxes:
    """Rows of boxes for each image, in its pixels or as `shares` of its width and height."""

    rows: Sequence[Rows]
    where: Callable[[int, int], str]  # says where the box of an image stands, such as in which line of a file
    shares: bool = False
    sizes: Sequence[tuple[int, int] | None] = ()  # width and height of the images as the annotations have them

    @cached_property
    def _most(self) -> int:
        """Return how many boxes each array has room for, so that all can be one. A filling row is 48 bytes."""
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
        stated = self.sizes[index] if self.sizes else None
        if stated is not None and stated != size:
            raise bad_source(
                f"{self.where(index, 0)} is of an image of {stated[0]} by {stated[1]} pixels, and the file has "
                f"{size[0]} by {size[1]}"
            )
        beyond = np.maximum(-rows[:, 1:3], rows[:, 3:5] - size).max(axis=1) > BEYOND * max(size) + 1
        if len(outside := np.flatnonzero(beyond)):
            corners = " ".join(f"{value:g}" for value in rows[outside[0], 1:5])
            raise bad_source(
                f"{self.where(index, int(outside[0]))} has a box from corner to corner of {corners}, outside its image "
                f"of {size[0]} by {size[1]} pixels"
            )


def _moved(rows: Rows, how: Preprocessing, size: tuple[int, int]) -> Rows:
    """Return the boxes where the preprocessing brings them, without those that the crop leaves out."""
    scale, shift = (np.array(each * 2, float) for each in place(size, how))
    whole = rows[:, 1:5] * scale + shift
    height, width = how.crop
    left = np.clip(whole, 0, [width, height] * 2)
    share = (left[:, 2:] - left[:, :2]).prod(axis=1) / (whole[:, 2:] - whole[:, :2]).prod(axis=1)
    kind = np.where((rows[:, 5] == COUNTED) & (share < ENOUGH), IGNORED_BOX, rows[:, 5])
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
        raise bad_source(f"{path} has no box in any image, so nothing to find: add boxes, or give images alone")
    if empty := [name for number, name in enumerate(names) if not counts[number]]:
        print(f"MIND: {path} has no box of {len(empty)} of its {len(names)} classes: {first_few(empty, most=3)}")


def boxes_of_array(path: Path, rows: NDArray[np.generic]) -> Boxes:
    """Return boxes of the shape (images, boxes, 6). Rows of the class -1 fill images that have fewer."""
    if rows.shape[2] != COLUMNS:
        raise bad_source(
            f"boxes of {path} have {rows.shape[2]} columns; they need class, left, top, right, bottom and kind: 0, or "
            "1 for a crowd; rows of class -1 are no boxes"
        )
    kept = [each[each[:, 0] >= 0].astype(np.float64) for each in rows]
    for index, each in enumerate(kept):
        for left, top, right, bottom in each[:, 1:5].tolist():
            if why := wrong_box((left, top, right - left, bottom - top)):
                raise bad_source(f"image {index} of {path} {why}")
    return Boxes(kept, lambda index, row: f"image {index} of {path}, box {row},")


@dataclass(frozen=True)
class Numbers:
    """An array with a row for each sample, or for each pair of samples."""

    rows: NDArray[np.generic]

    def prepare(self, index: int, how: Preprocessing | None, size: tuple[int, int] | None) -> NDArray[np.generic]:
        return np.asarray(self.rows[index], self.rows.dtype.newbyteorder("="))


class Ranked(Numbers):
    """The targets of samples to be ranked, NaN if there are none, and the numbers of the questions that they answer."""

    @property
    def questions(self) -> NDArray[np.int64]:
        return self.rows[:, -1].astype(np.int64)


def ranked(targets: NDArray[np.generic] | None, questions: NDArray[np.generic] | None) -> Ranked:
    """Number the questions. If nothing is known of them, all samples answer the same one."""
    count = len(targets if targets is not None else questions if questions is not None else ())
    numbers = np.zeros(count) if questions is None else np.unique(questions, return_inverse=True)[1]
    return Ranked(np.column_stack([np.full(count, np.nan) if targets is None else targets, numbers]))


@dataclass(frozen=True)
class Masks:
    """The class of each pixel: files, or an array. `ignore` is the value of pixels that do not count."""

    masks: Sequence[Path] | NDArray[np.generic]
    ignore: int

    def prepare(self, index: int, how: Preprocessing | None, size: tuple[int, int] | None) -> NDArray[np.generic]:
        """Scale and crop a mask as its image was, without mixing classes."""
        given = self.masks[index]
        name = str(given) if isinstance(given, Path) else f"mask {index}"
        numbers = (_read(given) if isinstance(given, Path) else np.asarray(given)).astype(np.int64)
        wrong = (numbers != self.ignore) & ((numbers < 0) | (numbers >= IGNORED))
        if wrong.any():
            raise bad_source(
                f"{name} holds the value {numbers[wrong][0]}; classes are 0 to {IGNORED - 1}, and samples.ignore, "
                f"{self.ignore}, is for pixels that do not count"
            )
        mask = np.where(numbers == self.ignore, IGNORED, numbers).astype(np.uint8)
        if how is None:
            return mask
        if size != (mask.shape[1], mask.shape[0]):
            image = " by ".join(map(str, size or ()))
            raise bad_source(
                f"{name} has {mask.shape[1]} by {mask.shape[0]} pixels, and its image has {image}: a mask needs the "
                "size of its image"
            )
        changes = {"color": "grey", "interpolation": "nearest", "fill": IGNORED, "layout": "nchw"}
        return np.asarray(pixels_of(Image.fromarray(mask), how.model_copy(update=changes))[0])


def _read(path: Path) -> NDArray[np.generic]:
    """Read a mask as it is stored: a palette only says in which colours to show classes."""
    try:
        with Image.open(path) as image:
            image.load()
            values = np.asarray(image)
    except Exception as error:  # each of Pillow's formats raises errors of its own for broken files
        raise bad_source(f"the mask {path} cannot be read: {error}") from None
    if values.ndim != 2:
        raise bad_source(f"the mask {path} is a picture in colours; it must hold the number of each pixel's class")
    return values

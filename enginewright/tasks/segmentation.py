"""Segmentation: an output with a score for each class and pixel, as `out` of torchvision's models."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from enginewright.core.facts import IGNORED, UNSEEN, Known
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import counted
from enginewright.data.feeds import Outputs, Places, blocks, finite
from enginewright.tasks.classification import name_of
from enginewright.tasks.task import Metric, OneOutput, Shapes, Shown, Statistics, Truth, Weights

if TYPE_CHECKING:
    from PIL import Image

Maps = NDArray[np.int64]  # the class of each pixel


def _mean_iou(statistics: Statistics, weights: Weights) -> Statistics:
    """Return the mean IoU of each set over the classes that it holds: pixels that a class has in both mask and answer,
    by those that it has in either, counted over all images as is customary."""
    both, either = (weights @ statistics[:, kind] for kind in (0, 1))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nanmean(np.where(either > 0, both / either, np.nan), axis=1))


class Segmentation(OneOutput):
    metrics = (Metric("mIoU", _mean_iou),)
    agreement, answers = "pixel agreement", "the pixels of "
    lacking = "no masks or no scores"
    known = Known(array="masks", words="a mask of class numbers", types="iu", axes=(3,), column="mask")

    def candidates(self, shapes: Shapes) -> list[str]:
        """Return the outputs of pictures with a channel for each class."""
        return self.with_classes(shapes, axes=4)

    def misfit(self, shapes: Shapes, truth: Truth | None) -> str | None:
        count = counted(len(self._names), "class") if self._names else "two or more classes"
        if why := self.unread(shapes, f"a score for each pixel and each of {count}"):
            return why
        if truth is None or not (name := self.reads(shapes)):
            return None
        _, classes, *size = shapes[name]
        largest = max(int(np.where(mask == IGNORED, 0, mask).max()) for mask in truth)
        if largest >= int(str(classes)):
            last = int(str(classes)) - 1
            return f"samples.source: a mask has the class {largest}, and output {name} has classes 0 to {last}"
        if any(side % int(str(found)) for side, found in zip(truth.shape[1:], size, strict=True)):
            return (
                f"samples.source: masks are prepared with {truth.shape[1]} by {truth.shape[2]} pixels, which is no "
                f"multiple of output {name}: scale its scores up in the model"
            )
        return None

    def measure(self, outputs: Outputs, truth: Truth, places: Places) -> Sequence[Statistics]:
        if not (name := self.read_from(outputs)):
            return []
        scores, classes = outputs[name], outputs[name].shape[1]
        counts = [
            _overlaps(answer, mask, classes)
            for block in blocks(scores)
            for answer, mask in zip(_enlarged(_maps(scores[block]), truth), truth[places[block]], strict=True)
        ]
        return [np.array(counts, np.float64)]

    def agree(self, reference: Outputs, got: Outputs) -> Statistics | None:
        if not (name := self.read_from(reference)):
            return None
        same = [_maps(reference[name][block]) == _maps(got[name][block]) for block in blocks(reference[name])]
        return np.concatenate([part.mean(axis=(1, 2)) for part in same])

    def show(self, outputs: Outputs, top: int) -> Iterator[Shown]:
        """Show which share of the picture the largest classes take."""
        for answer in _maps(outputs[self.read_from(outputs) or ""]):
            shares = np.bincount(answer.ravel()) / answer.size
            largest = [number for number in np.argsort(-shares, kind="stable")[:top].tolist() if shares[number] > 0]
            named = [(name_of(self._names, number), number, float(shares[number])) for number in largest]
            areas = [{"class": name, "index": number, "share": round(share, 6)} for name, number, share in named]
            text = "   ".join(f"{name} {share:.1%}" for name, _, share in named)
            yield Shown(text, {"areas": areas}, areas=answer)

    def in_image(self, shown: Shown, how: Preprocessing, size: tuple[int, int]) -> Shown:
        """Return the classes of the pixels of the image itself; those that the model does not see are of none."""
        from enginewright.data.preprocessing import place

        assert shown.areas is not None, "as it was shown"
        scale, shift = place(size, how)
        across, down = (
            np.floor(((np.arange(pixels) + 0.5) * times + moved) * cells / whole).astype(np.int64)
            for pixels, times, moved, cells, whole in zip(
                size, scale, shift, shown.areas.shape[::-1], how.crop[::-1], strict=True
            )
        )
        rows, columns = shown.areas.shape
        small = shown.areas.astype(np.int16)  # an image may have many millions of pixels
        found = small[np.clip(down, 0, rows - 1)[:, np.newaxis], np.clip(across, 0, columns - 1)]
        seen = ((down >= 0) & (down < rows))[:, np.newaxis] & (across >= 0) & (across < columns)
        return shown._replace(areas=np.where(seen, found, np.int16(UNSEEN)))

    def draw(self, image: "Image.Image", shown: Shown) -> "Image.Image":
        from enginewright.tasks.pictures import draw_areas

        assert shown.areas is not None, "as it was shown"
        return draw_areas(image, shown.areas, shown.fields["areas"])


def _maps(scores: NDArray[Any]) -> Maps:
    return np.asarray(finite(scores).argmax(axis=1))


def _enlarged(maps: Maps, truth: Truth) -> Maps:
    """Repeat the pixels of smaller answers up to the size of the masks."""
    rows, columns = (side // found for side, found in zip(truth.shape[1:], maps.shape[1:], strict=True))
    return maps if rows == columns == 1 else maps.repeat(rows, axis=1).repeat(columns, axis=2)


def _overlaps(answer: Maps, mask: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Return for each class the pixels that it has in both, and in either, of answer and mask."""
    counted = mask != IGNORED
    known, found = mask[counted].astype(np.int64), answer[counted]
    both = np.bincount(known[known == found], minlength=classes)
    either = np.bincount(known, minlength=classes) + np.bincount(found, minlength=classes) - both
    return np.stack([both, either]).astype(np.float64)

"""Detection: outputs with boxes and their scores, before boxes of the same object are dropped."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import Known
from enginewright.core.params.model import CHOSEN_ALREADY, CHOSEN_OUTPUTS, NO_SCORES, OF_QUERIES, BoxesParams
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import counted
from enginewright.data.feeds import Outputs, Places
from enginewright.tasks.average_precision import Matches, match_all, mean_average_precision
from enginewright.tasks.boxes import CHOSEN, PAIRS, Rows, find_boxes, overlaps
from enginewright.tasks.classification import name_of
from enginewright.tasks.task import Metric, Shapes, Shown, Statistics, Task, Truth

if TYPE_CHECKING:
    from PIL import Image

SINGLES = ("yolov8", "yolov5", "end_to_end")  # forms of one output
SAME_PLACE = 0.5  # the overlap from which on two boxes mean the same object
STILL_SEEN = 0.5  # of a box's score that the other model's box needs to count as found
MOST_AT_THE_END = 1000  # boxes of a model that selects them itself


class Layout(NamedTuple):
    """The outputs that have boxes and scores, and their form."""

    form: str
    boxes: str
    scores: str | None = None  # None: the same output
    others: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.boxes,) if self.scores is None else (self.boxes, self.scores, *self.others)


class Detection(Task):
    metrics = (
        Metric("mAP", partial(mean_average_precision, levels=slice(None))),
        Metric("mAP50", partial(mean_average_precision, levels=slice(1)), in_steps=True),
    )
    agreement, answers = "box agreement", "the boxes of "
    lacking = "no boxes are known, or no output has them"
    known = Known(array="boxes", words="rows of boxes", types="iuf", axes=(3,))
    program = "detect"

    def __init__(
        self,
        output: str | None,
        class_names: Sequence[str],
        how: BoxesParams | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        """`size` is the height and width of the model's input, if it takes images."""
        self._asked, self._names, self._how, self.size = output, class_names, how or BoxesParams(), size

    def given(self, boxes: BoxesParams | None, preprocessing: Preprocessing | None) -> Self:
        return type(self)(self._asked, self._names, boxes, preprocessing.crop if preprocessing else None)

    def reads(self, shapes: Shapes) -> str | None:
        found = self.layout(shapes)
        return found and (found.scores or found.boxes)

    def layout(self, shapes: Shapes) -> Layout | None:
        """Return the only way in which the outputs can be read."""
        possible = self._layouts(shapes)
        return possible[0] if len(possible) == 1 else None

    def settings(self, form: str) -> BoxesParams:
        """Return how boxes of this form are read, with nothing left to find out."""
        unit = self._how.unit if self._how.unit != "auto" else "shares" if form in OF_QUERIES else "pixels"
        if form == CHOSEN and self._how.chooses_in_graph:  # which decodes them, too
            unit = "pixels"
        return self._how.model_copy(update={"form": form, "unit": unit})

    def _layouts(self, shapes: Shapes) -> list[Layout]:
        tables = {name: shape for name, shape in shapes.items() if len(shape) == 3}
        pairs = [
            Layout(form, boxes, scores)
            for boxes, shape in tables.items()
            for scores, other in tables.items()
            if boxes != scores and shape[2] == 4 and _same(shape[1], other[1])
            for form in (self._forms(PAIRS) if self._how.form != "auto" else self._pair_forms(scores, other[2]))
            if self._fits(form, other)
        ]
        if len(pairs) > 1:  # of four classes, scores look like boxes
            pairs = [pair for pair in pairs if "box" in pair.boxes.lower() and "box" not in str(pair.scores).lower()]
        forms = self._forms(SINGLES)
        singles = [Layout(form, name) for name in tables for form in forms if self._fits(form, tables[name])]
        found = self._chosen(shapes) or pairs or singles
        return [each for each in found if self._asked is None or self._asked in each.outputs]

    def _chosen(self, shapes: Shapes) -> list[Layout]:
        """Return how boxes are read that the model has chosen already. The names say which numbers are which."""
        return [
            Layout(CHOSEN, boxes, scores, (classes, count))
            for boxes, shape in shapes.items()
            for classes in (name for name in shapes if "class" in name.lower() or "label" in name.lower())
            for count in (name for name in shapes if "count" in name.lower() or "num" in name.lower())
            for scores in shapes.keys() - {boxes, classes, count}
            if len(shape) == 3 and shape[2] == 4 and len(shapes[scores]) == len(shapes[classes]) == 2
            if _same(shape[1], shapes[scores][1]) and _same(shape[1], shapes[classes][1])
            if tuple(shapes[count][1:]) == (1,)
        ]

    def _forms(self, known: Sequence[str]) -> list[str]:
        return [form for form in known if self._how.form in ("auto", form)]

    def _pair_forms(self, scores: str, columns: object) -> list[str]:
        """Return what the name of the scores says. DETR has one class more, which means nothing."""
        if "logit" not in scores.lower():
            return ["xyxy"]
        return ["rtdetr"] if columns == len(self._names) else ["detr"]

    def _fits(self, form: str, shape: Sequence[object]) -> bool:
        """Tell whether an output with scores has the shape that this form has for the known number of classes."""
        _, rows, columns = shape
        classes = len(self._names)
        match form:
            case "end_to_end":
                return columns == 6 and not (isinstance(rows, int) and rows > MOST_AT_THE_END)
            case "yolov8":
                return _has_size(rows, classes and classes + 4, 5) and not (not classes and _more(rows, columns))
            case "yolov5":
                return _has_size(columns, classes and classes + 5, 6) and not (not classes and _more(columns, rows))
            case "detr":
                return _has_size(columns, classes and classes + 1, 2)
            case _:
                return _has_size(columns, classes, 1)

    def misfit(self, shapes: Shapes, truth: Truth | None) -> str | None:
        if self._asked == NO_SCORES:
            return None
        if (found := self.layout(shapes)) is None:
            return self._unread(shapes)
        if truth is None or not truth.size:
            return None
        largest = int(truth[:, :, 0].max())
        classes, output = self._classes(found, shapes), self.reads(shapes)
        if isinstance(classes, int) and largest >= classes:
            return f"samples.source: a box has the class {largest}, and output {output} has {counted(classes, 'class')}"
        return None

    def _unread(self, shapes: Shapes) -> str:
        several = self._layouts(shapes)
        if len({layout.form for layout in several}) > 1:
            forms = " or ".join(sorted({layout.form for layout in several}))
            return f"model.boxes.form: output {several[0].boxes} may be {forms}: say which"
        if several:
            named = ", ".join(" with ".join(layout.outputs) for layout in several)
            return f"model.scores: boxes may be {named}: name the output with the scores"
        if near := self._nearly(shapes):
            return near
        classes = counted(len(self._names), "class") if self._names else "each class"
        of_form = "" if self._how.form == "auto" else f" in the form {self._how.form}"
        return (
            f"task: no outputs have boxes{of_form} with scores of {classes}: (N, boxes, 4) beside (N, boxes, classes), "
            "or YOLO's (N, 4 + classes, boxes), (N, boxes, 5 + classes) or (N, boxes, 6); model.boxes.form says which. "
            f"Name another task, or set model.scores: {NO_SCORES} to judge errors alone"
        )

    def _nearly(self, shapes: Shapes) -> str | None:
        """Say what would be read if the form were found by itself, or if the number of classes did not count."""
        free = self._how.model_copy(update={"form": "auto"})
        if self._how.form != "auto" and (found := Detection(self._asked, self._names, free).layout(shapes)):
            return f"model.boxes.form: output {found.boxes} is not {self._how.form}, and may be {found.form}: set auto"
        found = Detection(self._asked, (), free).layout(shapes) if self._names else None
        known = found and self._classes(found, shapes)
        if not found or not known:
            return None
        return (
            f"samples.source has {counted(len(self._names), 'class')}, and output {found.scores or found.boxes} has "
            f"{known}, if it is {found.form}: samples.class_names lists all classes of the model, in its order"
        )

    def _classes(self, layout: Layout, shapes: Shapes) -> object:
        return None if layout.form in CHOSEN_ALREADY else self._counts(layout, shapes)[1]

    def _counts(self, layout: Layout, shapes: Shapes) -> tuple[Any, Any]:
        """Return how many boxes and classes the outputs of a form have that is not chosen."""
        _, rows, columns = shapes[layout.scores or layout.boxes]
        taken = {"yolov8": 4, "yolov5": 5, "detr": 1}.get(layout.form, 0)
        counted, boxes = (rows, columns) if layout.form == "yolov8" else (columns, rows)
        return boxes, counted - taken if isinstance(counted, int) else None

    def _found(self, outputs: Outputs) -> Iterator[Rows] | None:
        """Return the boxes of each sample, or None if the outputs hold none."""
        layout = self.layout({name: values.shape for name, values in outputs.items()})
        if layout is None:
            return None
        how, arrays = self.settings(layout.form), [outputs[name] for name in layout.outputs]
        return (find_boxes(of_one, how, self.size) for of_one in zip(*arrays, strict=True))

    def in_graph(self, shapes: Shapes) -> dict[str, Any]:
        """Return what model.boxes.nms asks for, with nothing left to find out, and for shares the images' size."""
        if not self._how.chooses_in_graph or not (layout := self.layout(shapes)):
            return {}
        how = self.settings(layout.form)
        if layout.form in CHOSEN_ALREADY:
            raise EnginewrightError(
                f"model.boxes.nms: the model chooses its boxes itself, in the form {layout.form}: set outside"
            )
        boxes, classes = self._counts(layout, shapes)
        if boxes * classes < how.most:
            raise EnginewrightError(
                f"model.boxes.most: is {how.most}, and the model has {boxes} boxes of {classes} classes: set it to "
                f"{boxes * classes} at most"
            )
        size = self.size if how.unit == "shares" else None
        return {"outputs": layout.outputs, "how": how, "classes": classes, "size": size}

    def as_engine(self, outputs: Outputs) -> Outputs:
        """Return the boxes of each sample in rows of which the first ones count, and the others are zero."""
        if not self._how.chooses_in_graph or (found_in_each := self._found(outputs)) is None:
            return outputs  # of which the stage export says what they lack
        chosen = np.zeros((len(next(iter(outputs.values()))), self._how.most, 6), np.float32)
        counts = np.zeros((len(chosen), 1), np.float32)
        for rows, count, found in zip(chosen, counts, found_in_each, strict=True):
            rows[: len(found)], count[:] = found, len(found)
        return dict(zip(CHOSEN_OUTPUTS, (chosen[..., :4], chosen[..., 4], chosen[..., 5], counts), strict=True))

    def comparable(self, reference: Outputs, got: Outputs) -> tuple[Outputs, Outputs]:
        """Return boxes that the model has chosen, those of both models in one order: two of nearly the same score
        often swap places. A box that only one of them has counts by its score, for which the other has zero."""
        layout = self.layout({name: values.shape for name, values in reference.items()})
        one, other = self._found(reference), self._found(got)
        if layout is None or layout.form not in CHOSEN_ALREADY or one is None or other is None:
            return reference, got
        rows = np.zeros((2, len(reference[layout.boxes]), 2 * self._how.most, 5))
        for place, both in enumerate(zip(one, other, strict=True)):
            for side, found in enumerate(_side_by_side(*both)):
                rows[side, place, : len(found)] = found
        first, second = ({"boxes": each[..., :4], "scores": each[..., 4]} for each in rows)
        return first, second

    def measure(self, outputs: Outputs, truth: Truth, places: Places) -> Sequence[Matches]:
        if (found := self._found(outputs)) is None:
            return []
        return [match_all(zip(found, (truth[place] for place in places), strict=True))] * len(self.metrics)

    def agree(self, reference: Outputs, got: Outputs) -> Statistics | None:
        """Return for each sample the share of sure boxes, of PyTorch and of the engine, that the other one has, too. It
        need not be sure of them: a score that moves from just above the limit to just below is the same answer."""
        one, other = self._found(reference), self._found(got)
        if one is None or other is None:
            return None
        return np.array([self._share_of_same(*both) for both in zip(one, other, strict=True)], np.float64)

    def _share_of_same(self, reference: Rows, got: Rows) -> float:
        same = (overlaps(reference, got) >= SAME_PLACE) & (reference[:, 5:6] == got[:, 5])
        scores, others = reference[:, 4:5], got[:, 4]
        seen = same & (others >= STILL_SEEN * scores), same & (scores >= STILL_SEEN * others)
        sure = np.concatenate([scores[:, 0] >= self._how.sure, others >= self._how.sure])
        return float(np.concatenate([seen[0].any(axis=1), seen[1].any(axis=0)])[sure].mean()) if sure.any() else 1.0

    def show(self, outputs: Outputs, top: int) -> Iterator[Shown]:
        for rows in self._found(outputs) or ():
            boxes = [
                {
                    "class": name_of(self._names, int(row[5])),
                    "index": int(row[5]),
                    "score": round(row[4], 6),
                    "box": [round(value, 2) for value in row[:4]],
                }
                for row in rows[rows[:, 4] >= self._how.sure].tolist()
            ]
            yield Shown(text_of(boxes, top), {"boxes": boxes}, top)

    def in_image(self, shown: Shown, how: Preprocessing, size: tuple[int, int]) -> Shown:
        """Return the boxes in pixels of the image itself, which they do not leave."""
        from enginewright.data.preprocessing import place

        scale, shift = (np.array(each * 2) for each in place(size, how))
        boxes = []
        for found in shown.fields["boxes"]:
            corners = np.clip((np.array(found["box"]) - shift) / scale, 0, np.array(size * 2))
            boxes.append(found | {"box": [round(value, 1) for value in corners.tolist()]})
        return Shown(text_of(boxes, shown.top), {"boxes": boxes}, shown.top)

    def draw(self, image: "Image.Image", shown: Shown) -> "Image.Image":
        from enginewright.tasks.pictures import draw_boxes

        return draw_boxes(image, shown.fields["boxes"])


def _side_by_side(one: Rows, other: Rows) -> tuple[Rows, Rows]:
    """Return corners and scores of the boxes of both, the same box in the same row."""
    alike = overlaps(one, other) * (one[:, 5:6] == other[:, 5])
    partners = np.full(len(one), -1)
    for row in range(len(one) if len(other) else 0):
        best = int(alike[row].argmax())
        if alike[row, best] >= SAME_PLACE:
            partners[row], alike[:, best] = best, 0
    paired = partners >= 0
    alone = np.delete(other, partners[paired], axis=0)
    first, second = np.concatenate([one, alone])[:, :5], np.concatenate([one, alone])[:, :5]
    first[len(one) :, 4], second[: len(one), 4] = 0, 0
    second[: len(one)][paired] = other[partners[paired], :5]
    return first, second


def text_of(boxes: Sequence[dict[str, Any]], top: int) -> str:
    named = []
    for found in boxes[:top]:
        left, top_edge, right, bottom = (f"{value:.0f}" for value in found["box"])
        named.append(f"{found['class']} {found['score']:.1%} at {left},{top_edge} to {right},{bottom}")
    more = [f"and {len(boxes) - top} more"] if len(boxes) > top else []
    return "   ".join(named + more) or "nothing"


def _same(one: object, other: object) -> bool:
    return one == other or not (isinstance(one, int) and isinstance(other, int))


def _has_size(size: object, expected: int, least: int) -> bool:
    """Tell whether an axis has the wanted size, or at least the least one if none is known."""
    return isinstance(size, int) and (size == expected if expected else size >= least)


def _more(one: object, other: object) -> bool:
    return isinstance(one, int) and isinstance(other, int) and one >= other

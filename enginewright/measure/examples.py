"""Look at samples: draw those whose answers change, and tell whether a model would know them if prepared otherwise."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record
from enginewright.core.params.build import Range
from enginewright.core.params.samples import IDS, Preprocessing
from enginewright.core.progress import progress
from enginewright.core.text import as_in_yaml
from enginewright.data.feeds import Outputs, Run, errors_of_samples
from enginewright.data.preprocessing import pixels_of
from enginewright.data.run_all import outputs_here, run_all
from enginewright.data.sample_set import TOKENIZER, UNCROPPED, SampleSet
from enginewright.data.texts import TextReader
from enginewright.measure.agreement import answers_by_chance, metric_of
from enginewright.tasks.classification import Classification
from enginewright.tasks.task import Task, answer_at

MOST = 3
LONGEST = 192  # pixels of a drawn side
BETWEEN = 8  # pixels
QUALITY = 75  # of JPEG: about 10 kB for a pair


class Example(Record):
    file: str | None  # of the picture; None for a text
    sample: str  # its name
    text: str | None = None
    same: float | None  # the share of the answer that is the same, if answers can be the same
    lead: float | None  # how much of the lead of PyTorch's answer is left, below 0 if another is ahead; None: no lead
    reference: str  # the answer of PyTorch, and of the engine
    engine: str


class Examples(Record):
    examples: tuple[Example, ...]


EXAMPLES = "examples.json"


def write_examples(task: Task, samples: SampleSet, expected: Outputs, got: Outputs, folder: Path) -> None:
    """Write examples.json, and pictures of images. Arrays that are neither images nor texts have no examples, nor have
    outputs that the task cannot read."""
    how, texts, found = samples.manifest.preprocessing, samples.manifest.text, []
    words = _words_of(samples)
    if (how or texts) and task.reads({name: values.shape for name, values in expected.items()}):
        same = task.agree(expected, got)
        # Among equal answers, those that are nearest to another one, or else whose outputs differ most.
        leads = task.leads_kept(expected, got)
        have_leads = len(leads) == len(samples)
        nearest = leads if have_leads else -errors_of_samples(*task.comparable(expected, got))
        order = np.lexsort((nearest, np.zeros(len(samples)) if same is None else same))
        for number, place in enumerate(order[:MOST].tolist()):
            if how is None:
                file, text = None, words(place)
                one, other = task.beside(expected, got, place, words)
            else:
                file, text = f"{number}.jpg", None
                picture, one, other = _draw(task, samples, how, (expected, got), place)
                picture.save(folder / file, quality=QUALITY)
            example = Example(
                file=file,
                sample=samples.manifest.samples[place].name,
                text=text,
                same=None if same is None else float(same[place]),
                lead=float(leads[place]) if have_leads else None,
                reference=one,
                engine=other,
            )
            found.append(example)
    Examples(examples=tuple(found)).write(folder / EXAMPLES)


def _draw(
    task: Task, samples: SampleSet, how: Preprocessing, outputs: tuple[Outputs, Outputs], place: int
) -> tuple[Image.Image, str, str]:
    """Draw the two answers for an image beside each other, and return them as lines, too."""
    one, other = (answer_at(task, each, place) for each in outputs)
    image = as_image(samples.pixels_at(place), how)
    as_seen = how.model_copy(update={"resize": how.crop, "resize_mode": "stretch"})
    left, right = (task.draw(image, task.in_image(each, as_seen, image.size)) for each in (one, other))
    return beside(left, right), one.text, other.text


def _words_of(samples: SampleSet) -> Callable[[int], str]:
    """Return what says the words of each text, as far as the model reads it."""
    texts = samples.manifest.text
    if texts is None:
        return str
    reader, lengths = TextReader(samples.folder / TOKENIZER, texts.how), samples.lengths
    ids = next(name for name, meaning in texts.how.meanings.items() if meaning == IDS)

    def words(place: int) -> str:
        row = samples.read_at(np.array([place]))[ids][0]
        return reader.words(row[: None if lengths is None else lengths[place]].tolist(), special=texts.together > 1)

    return words


def as_image(pixels: NDArray[np.uint8], how: Preprocessing) -> Image.Image:
    """Return the pixels that the model sees as a picture of a size to look at."""
    rows = pixels if how.layout == "nhwc" else pixels.transpose(1, 2, 0)
    rows = rows[..., ::-1] if how.color == "bgr" else rows
    image = Image.fromarray(np.ascontiguousarray(rows[..., 0] if how.channels == 1 else rows)).convert("RGB")
    times = LONGEST / max(image.size)
    width, height = (max(1, round(side * times)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    both = Image.new("RGB", (left.width + BETWEEN + right.width, max(left.height, right.height)), "white")
    both.paste(left, (0, both.height - left.height))  # captions may have different heights, above the image
    both.paste(right, (left.width + BETWEEN, both.height - right.height))
    return both


# A model that was trained on values from -1 to 1 and gets those from 0 to 255 is wrong without an error, and so are its
# engines. So is one that knows smaller images, or whole ones.

Values = tuple[float, ...]
Scaling = tuple[float, Values, Values]  # divide_by, mean and std
FEWEST_SAMPLES = 16
BATCH = 32
FAR = 0.25  # of 64 samples, four times what the accuracy of two models that guess differs by
SUSPICIOUS = 1 - FAR  # with a higher accuracy nothing can be that much better, and nothing else is tried
MISTAKES, CLEARLY = 3, 0.05  # at most, one after the other; and what it gains to mend each
NEAR = 1e-3  # means and deviations are written with three digits
# In the order of rgb: ImageNet's, those of Inception and many transformers, shares of white,
# bytes as they are, and Caffe's.
USUAL: tuple[Scaling, ...] = (
    (255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    (255.0, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    (255.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    (1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    (1.0, (123.68, 116.779, 103.939), (1.0, 1.0, 1.0)),
)
SIDES = (28, 32, 64, 96, 128, 160, 192, 224, 256)  # of images that networks learn from, in pixels


def doubt_about_preparation(
    run: Run, samples: SampleSet, task: Task, outputs: Outputs, sizes: Range, made_by: str
) -> str | None:
    """Return a sentence on the order of classes, or on the way to prepare images, with which a classifier is right far
    more often, or None. `outputs` are those for the samples as they are: they decide whether others are tried."""
    manifest, truth, places = samples.manifest, samples.truth, np.arange(len(samples))
    how, own = manifest.preprocessing, metric_of(task, outputs, truth, places)
    if not isinstance(task, Classification) or truth is None or own is None or own >= SUSPICIOUS:
        return None
    order, right = task.best_order(outputs, truth)
    if right >= max(SUSPICIOUS, own + FAR):  # some order fits some answers of a model that guesses, too
        classes = as_in_yaml([manifest.class_names[place] for place in order])
        otherwise = f"with samples.class_names {classes} it would be right for {right:.1%}"
        return f"{made_by} is right for {own:.1%} of {len(samples)} {manifest.kind}; {otherwise}: check their order"
    if how is None or len(samples) < FEWEST_SAMPLES:
        return None
    with np.load(samples.folder / UNCROPPED) as held:
        images = [Image.fromarray(held[name]) for name in held.files]
    places = places[: len(images)]

    @cache
    def outputs_of(other: Preprocessing) -> Outputs:
        """Return nothing where a model refuses such values or such a size, which is no fault of it."""
        with suppress(EnginewrightError):
            pixels = {manifest.inputs[0]: np.stack([pixels_of(each, other) for each in images])}
            prepared = replace(samples, manifest=manifest.model_copy(update={"preprocessing": other}), held=pixels)
            return run_all(outputs_here(run), prepared, sizes.nearest(BATCH), sizes.min > 1, chosen=places)
        return {}

    def accuracy(other: Preprocessing) -> float:
        return (metric_of(task, outputs_of(other), truth, places) or 0.0) if outputs_of(other) else 0.0

    own, found = accuracy(how), how
    sizes_of_images = {image.size[::-1] for image in images}
    sides = [*(sizes_of_images if len(sizes_of_images) == 1 else ()), *((side, side) for side in SIDES)]
    for _ in range(MISTAKES):
        ways = [*_other_scalings(found), *_other_crops(found, sides)]
        best = max(progress(ways, "prepared otherwise", len(ways), "ways"), key=accuracy)
        if accuracy(best) < accuracy(found) + CLEARLY:
            break
        found = best
    if accuracy(found) < own + FAR or answers_by_chance(task, outputs_of(found), truth):
        return None
    return (
        f"{made_by} is right for {own:.1%} of {len(places)} images; with {_in_words(how, found)} it would be right "
        f"for {accuracy(found):.1%}: check samples.preprocessing"
    )


def _other_scalings(how: Preprocessing) -> Iterator[Preprocessing]:
    """Yield the usual ways, each with both orders of the channels, and this one with the other order."""
    own = (how.divide_by, how.mean, how.std)
    for color in ("grey",) if how.color == "grey" else (how.color, "bgr" if how.color == "rgb" else "rgb"):
        usual = [(divide_by, _for(color, mean), _for(color, std)) for divide_by, mean, std in USUAL]
        for divide_by, mean, std in usual if color == how.color else [own, *usual]:
            # Bytes become nearly the same in two ways that are written otherwise.
            ours, theirs = np.array([*how.mean, *how.std]) * how.divide_by, np.array([*mean, *std]) * divide_by
            if color != how.color or not np.allclose(theirs, ours, rtol=0, atol=NEAR * 255):
                yield how.model_copy(update={"color": color, "divide_by": divide_by, "mean": mean, "std": std})


def _for(color: str, values: Values) -> Values:
    if color == "grey":
        return (round(sum(values) / len(values), 3),)
    return values if color == "rgb" else values[::-1]


def _other_crops(how: Preprocessing, sizes: Sequence[tuple[int, int]]) -> Iterator[Preprocessing]:
    """Yield the ways to bring an image to this size: without its margin, as ImageNet's networks take it, without the
    ends of its longer side alone, and whole, with another aspect or within bars; and two of them to other sizes. Far
    larger ones take long, and are tried once a larger one is better."""
    longer = max(how.crop)
    ways = [((longer * 8 // 7,) * 2, "shorter_side", how.crop), (how.crop, "pad", how.crop)]
    for crop in (how.crop, *(size for size in sizes if max(size) <= 2 * longer)):
        ways += [((max(crop),) * 2, "shorter_side", crop), (crop, "stretch", crop)]
    for resize, mode, crop in ways:
        yield how.model_copy(update={"resize": resize, "resize_mode": mode, "crop": crop})


def _in_words(how: Preprocessing, other: Preprocessing) -> str:
    """Say what differs, as params.yaml has it."""
    changed = {name: value for name, value in other if value != getattr(how, name)}
    changed |= {name: changed[name][0] for name in ("resize", "crop") if len({*changed.get(name, ())}) == 1}
    *first, last = [f"{name} {as_in_yaml(value)}" for name, value in changed.items()]
    return f"{', '.join(first)} and {last}" if first else last

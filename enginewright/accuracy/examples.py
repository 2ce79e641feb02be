"""Show a few samples as the task answers for them, PyTorch beside the engine: those whose answer changes first."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.accuracy.agreement import errors_of_samples
from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.params.text import IDS
from enginewright.core.record import Record
from enginewright.data.feeds import Outputs
from enginewright.data.sample_set import TOKENIZER, SampleSet
from enginewright.data.texts import TextReader
from enginewright.tasks.task import TOP_BESIDE, Task

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


def write_examples(task: Task, samples: SampleSet, wanted: Outputs, got: Outputs, folder: Path) -> None:
    """Write examples.json, and pictures of images. Arrays that are neither images nor texts have no examples, nor have
    outputs that the task cannot read."""
    how, texts, found = samples.manifest.preprocessing, samples.manifest.text, []
    words = _words_of(samples)
    if (how or texts) and task.reads({name: values.shape for name, values in wanted.items()}):
        same = task.agree(wanted, got)
        # Among equal answers, those that are nearest to another one, or else whose outputs differ most.
        leads = task.leads_kept(wanted, got)
        nearest = leads if len(leads) == len(samples) else -errors_of_samples(*task.comparable(wanted, got))
        order = np.lexsort((nearest, np.zeros(len(samples)) if same is None else same))
        for number, place in enumerate(order[:MOST].tolist()):
            file, text = (None, words(place)) if how is None else (f"{number}.jpg", None)
            if how is None:
                answers = task.beside(wanted, got, place, words)
            else:
                answers = _draw(task, samples, how, wanted, got, place, folder / str(file))
            share = None if same is None else float(same[place])
            name = samples.manifest.samples[place].name
            lead = float(leads[place]) if len(leads) == len(samples) else None
            one, other = answers
            found.append(Example(file=file, sample=name, text=text, same=share, lead=lead, reference=one, engine=other))
    Examples(examples=tuple(found)).write(folder / EXAMPLES)


def _draw(
    task: Task, samples: SampleSet, how: Preprocessing, wanted: Outputs, got: Outputs, place: int, file: Path
) -> tuple[str, str]:
    """Write the two answers for an image beside each other, and return them as lines."""
    one, other = (
        next(iter(task.show({name: values[place : place + 1] for name, values in each.items()}, TOP_BESIDE)))
        for each in (wanted, got)
    )
    image = as_image(samples.pixels_at(place), how)
    as_seen = how.model_copy(update={"resize": how.crop, "resize_mode": "stretch"})
    pair = [task.draw(image, task.in_image(each, as_seen, image.size)) for each in (one, other)]
    beside(*pair).save(file, quality=QUALITY)
    return one.text, other.text


def _words_of(samples: SampleSet) -> Callable[[int], str]:
    """Return what says the words of each text, as far as the model reads it."""
    texts = samples.manifest.text
    if texts is None:
        return str
    reader, lengths = TextReader(samples.folder / TOKENIZER, texts.how), samples.lengths
    ids = next(name for name, meaning in texts.how.meanings.items() if meaning == IDS)

    def words(place: int) -> str:
        row = samples.read_at(np.array([place]))[ids][0]
        said = row[: lengths[place]] if lengths is not None else row
        return reader.words(said.tolist(), special=texts.together > 1)

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

"""Draw a few samples as the task answers for them, PyTorch beside the engine: those whose answer changes first."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginery.accuracy.agreement import errors_of_samples
from enginery.core.params.preprocessing import Preprocessing
from enginery.core.record import Record
from enginery.data.feeds import Outputs
from enginery.data.sample_set import SampleSet
from enginery.tasks.task import Task

MOST = 3
LONGEST = 192  # pixels of a drawn side
BETWEEN = 8  # pixels
TOP = 2  # guesses
QUALITY = 75  # of JPEG: about 10 kB for a pair


class Example(Record):
    file: str
    sample: str  # its name
    same: float | None  # the share of the answer that is the same, if answers can be the same
    lead: float | None  # how much of the lead of PyTorch's answer is left, below 0 if another is ahead; None: no lead
    reference: str  # the answer of PyTorch, and of the engine
    engine: str


class Examples(Record):
    examples: tuple[Example, ...]


EXAMPLES = "examples.json"


def write_examples(task: Task, samples: SampleSet, wanted: Outputs, got: Outputs, folder: Path) -> None:
    """Write pictures and examples.json. Arrays that are no images have no pictures, nor have outputs that the task
    cannot read."""
    how, found = samples.manifest.preprocessing, []
    if how is not None and task.reads({name: values.shape for name, values in wanted.items()}):
        same = task.agree(wanted, got)
        # Among equal answers, those that are nearest to another one, or else whose outputs differ most.
        leads = task.leads_kept(wanted, got)
        nearest = leads if len(leads) == len(samples) else -errors_of_samples(wanted, got)
        order = np.lexsort((nearest, np.zeros(len(samples)) if same is None else same))
        for number, place in enumerate(order[:MOST].tolist()):
            one, other = (
                next(iter(task.show({name: values[place : place + 1] for name, values in each.items()}, TOP)))
                for each in (wanted, got)
            )
            image, file = as_image(samples.pixels_at(place), how), f"{number}.jpg"
            as_seen = how.model_copy(update={"resize": how.crop, "resize_mode": "stretch"})
            pair = [task.draw(image, task.in_image(each, as_seen, image.size)) for each in (one, other)]
            beside(*pair).save(folder / file, quality=QUALITY)
            share = None if same is None else float(same[place])
            name = samples.manifest.samples[place].name
            lead = float(leads[place]) if len(leads) == len(samples) else None
            example = Example(file=file, sample=name, same=share, lead=lead, reference=one.text, engine=other.text)
            found.append(example)
    Examples(examples=tuple(found)).write(folder / EXAMPLES)


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

"""Answer for images: find them, prepare them as the engine takes them, and draw the answers onto copies."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.cli.inference.answer import Answer
from enginewright.cli.inference.standard_input import lines_of_standard_input
from enginewright.cli.inference.task import require_readable, run_filled
from enginewright.core.cores import in_parallel
from enginewright.core.errors import EnginewrightError
from enginewright.data.preprocessing import decode, normalize, pixels_of
from enginewright.data.sources.files import IMAGE_SUFFIXES, is_image
from enginewright.engine.engine import Engine

Tensor = NDArray[np.float32]
PICTURES = {".jpg", ".jpeg", ".png"}  # what is written; images of other types become .png
QUALITY = 92  # of JPEG


class Read(NamedTuple):
    """An image as the model takes it, and as it is."""

    tensor: Tensor
    image: Image.Image


class ImageReader:
    """An engine that takes images, whose outputs its task reads."""

    cut = 0  # images, which texts can be

    def __init__(self, engine: Engine, folder: Path) -> None:
        assert engine.record.preprocessing, "the caller looked"
        self._engine, self.how = engine, engine.record.preprocessing
        self._task = require_readable(engine.record, folder)

    def answer(self, images: Sequence[Path], top: int, draws: bool = False) -> Iterator[Answer]:
        """Answer for one batch, in the order given. An image that cannot be read is left out of the batch."""
        read = list(in_parallel(self._read, images))
        readable = [one.tensor for one in read if not isinstance(one, str)]
        (spec,) = self._engine.record.interface.sampled
        feeds = {spec.name: np.stack(readable)} if readable else {}
        shown = self._task.show(run_filled(self._engine, feeds), top) if readable else iter(())
        for path, one in zip(images, read, strict=True):
            if isinstance(one, str):
                yield Answer(path, None, one)
                continue
            answer = self._task.in_image(next(shown), self.how, one.image.size)
            yield Answer(path, answer, None, self._task.draw(one.image, answer) if draws else None)

    def _read(self, path: Path) -> Read | str:
        try:
            image = decode(path)
        except EnginewrightError as error:
            return str(error)
        try:
            return Read(normalize(pixels_of(image, self.how), self.how), image)
        except EnginewrightError as error:
            return f"{path}: {error}"


def find_images(places: Sequence[Path]) -> list[Path]:
    """Return the given files, those that the lines of standard input name for `-`, and all images below folders."""
    found: list[Path] = []
    for place in _named(places):
        if not place.is_dir():
            found.append(place)
            continue
        inside = sorted(path for path in _files_below(place) if is_image(path))
        if not inside:
            raise EnginewrightError(f"{place} holds no images: looked for {', '.join(sorted(IMAGE_SUFFIXES))}")
        found += inside
    return found


def _named(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        yield from map(Path, lines_of_standard_input()) if place == Path("-") else (place,)


def _files_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for root, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(root) / name for name in names)


def picture_files(images: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Return where each image with its answer goes: to its name, below the folders in which the images differ."""
    absolute = [Path(os.path.abspath(image)) for image in images]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    given = {path.resolve() for path in absolute}
    found: dict[Path, Path] = {}
    for image, path in zip(images, absolute, strict=True):
        name = path.relative_to(common)
        found[image] = folder / (name if name.suffix.lower() in PICTURES else name.with_name(f"{name.name}.png"))
        if found[image].resolve() in given:
            raise EnginewrightError(f"--pictures {folder} holds the images themselves: give another folder")
    return found


def save_picture(picture: Image.Image, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.save(file, quality=QUALITY)

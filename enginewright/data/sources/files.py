"""Read images that are single files, either all of them with a label or none."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from enginewright.cluster.spread import Cluster, Work, spread
from enginewright.core.cores import in_parallel
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.progress import progress
from enginewright.core.text import first_few
from enginewright.data.manifest import Sample
from enginewright.data.parts import AT_ONCE
from enginewright.data.preprocessing import ImageFile, Pixels, decode, in_form
from enginewright.data.sources.truth import Truths

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff"}


def is_image(entry: Path) -> bool:
    """Tell by its name whether a file is an image. To open a pipe would be to wait for who writes into it."""
    hidden = entry.name.startswith(".")  # some systems put hidden files beside each photo
    return entry.suffix.lower() in IMAGE_SUFFIXES and not hidden and entry.is_file()


class Prepared(NamedTuple):
    sample: Sample
    pixels: Pixels
    truth: NDArray[np.generic] | None = None


@dataclass(frozen=True)
class ImageFiles:
    """Image files. `names` are their names in the manifest, and `labels` is None for images without labels."""

    files: Sequence[Path]
    names: Sequence[str]
    labels: Sequence[int] | None
    class_names: tuple[str, ...]
    truths: Truths | None = None

    def __len__(self) -> int:
        return len(self.files)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        return self.described(index, how, decoded(self.files[index], how))

    def described(self, index: int, how: Preprocessing, found: "Decoded") -> Prepared:
        """Add what is known of an image to what its file holds, which may have been decoded elsewhere."""
        label = None if self.labels is None else self.labels[index]
        sample = Sample(name=self.names[index], sha256=found.sha256, label=label)
        truth = self.truths.prepare(index, how, found.size) if self.truths else None
        return Prepared(sample, found.pixels, truth)

    def refusal(self, first: EnginewrightError) -> EnginewrightError:
        """Return the error, or one that names all broken files: who removes one after the other waits for each."""
        found = progress(in_parallel(_is_broken, self.files), "looking for broken images", len(self), "images")
        broken = [str(file) for file, is_broken in zip(self.files, found, strict=True) if is_broken]
        if len(broken) < 2:
            return first
        return EnginewrightError(
            f"samples.source: {len(broken)} of {len(self)} images cannot be decoded, {first_few(broken)}: remove or "
            f"convert them. The first: {first}"
        )

    def spread(self, indices: Sequence[int], how: Preprocessing, cluster: Cluster) -> Iterator[Prepared]:
        """Prepare images, with the decoding on other machines."""
        parts = [indices[start : start + AT_ONCE] for start in range(0, len(indices), AT_ONCE)]
        given = (FilesPart(tuple(self.files[index] for index in part)) for part in parts)
        for part, found in zip(parts, spread(Decoding(how), given, cluster), strict=True):
            yield from (self.described(index, how, each) for index, each in zip(part, found, strict=True))


class Decoded(NamedTuple):
    sha256: str
    pixels: Pixels
    size: tuple[int, int]  # of the image as it is


def _is_broken(file: ImageFile) -> bool:
    try:
        decode(file)
    except EnginewrightError:
        return True
    return False


def decoded(file: ImageFile, how: Preprocessing) -> Decoded:
    image = decode(file)
    return Decoded(sha256(file), in_form(image, how, file), image.size)


class Carried(NamedTuple):
    """A file that was read, to be decoded on another machine."""

    name: str
    content: bytes

    def open(self, mode: Literal["rb"]) -> IO[bytes]:
        return io.BytesIO(self.content)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FilesPart:
    files: tuple[ImageFile, ...]

    def packed(self) -> Self:
        return type(self)(tuple(Carried(str(file), _content(file)) for file in self.files))


def _content(file: ImageFile) -> bytes:
    with file.open("rb") as opened:
        return opened.read()


@dataclass(frozen=True)
class Decoding(Work[FilesPart, list[Decoded]]):
    how: Preprocessing

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[FilesPart], list[Decoded]]]:
        yield lambda part: [decoded(file, self.how) for file in part.files]

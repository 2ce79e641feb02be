"""Where images come from: scikit-learn's digits, which need no download, or a folder of class folders."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from PIL import Image

from enginery.core.errors import EngineryError
from enginery.core.files import new_folder, sha256
from enginery.core.params import Preprocessing, SamplesParams
from enginery.core.progress import progress
from enginery.core.records import Manifest, Sample
from enginery.preprocessing import Pixels, decode, resize
from enginery.samples import MANIFEST, PIXELS

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}


class Prepared(NamedTuple):
    sample: Sample
    pixels: Pixels


class Source(Protocol):
    class_names: tuple[str, ...]

    def __len__(self) -> int: ...
    def prepare(self, index: int, how: Preprocessing) -> Prepared: ...


class Digits:
    """1,797 handwritten digits of 8 by 8 pixels, shipped inside scikit-learn."""

    def __init__(self) -> None:
        from sklearn.datasets import load_digits  # takes a second to import, and a folder does not need it

        digits = load_digits()
        self.class_names = tuple(str(name) for name in digits.target_names)
        self._pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
        self._labels = digits.target

    def __len__(self) -> int:
        return len(self._labels)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        pixels = self._pixels[index]
        sample = Sample(
            name=f"digits/{index:04d}",
            sha256=hashlib.sha256(pixels.tobytes()).hexdigest(),
            label=int(self._labels[index]),
        )
        return Prepared(sample, resize(Image.fromarray(pixels).convert("RGB"), how))


class ImageFolder:
    """A folder of class folders: the classes are the folders' names in alphabetical order."""

    def __init__(self, root: Path) -> None:
        classes = sorted(folder for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
        self._files = [
            (file, label)
            for label, folder in enumerate(classes)
            for file in sorted(folder.rglob("*"))
            if file.suffix.lower() in IMAGE_SUFFIXES
        ]
        if not self._files:
            raise EngineryError(f"{root} holds no images: it needs a folder per class, such as {root}/cat/1.jpg")
        self.class_names = tuple(folder.name for folder in classes)
        self._root = root

    def __len__(self) -> int:
        return len(self._files)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        file, label = self._files[index]
        sample = Sample(name=file.relative_to(self._root).as_posix(), sha256=sha256(file), label=label)
        return Prepared(sample, resize(decode(file), how))


def brought(path: str, data: Path, setting: str, keywords: str) -> Path:
    """A file or folder that the user brought: it must lie in the folder that DVC watches for it."""
    found = Path(path)
    if not found.exists():
        raise EngineryError(f"{setting}: {path} does not exist; give {keywords} or a path in {data}/")
    if not found.resolve().is_relative_to(data.resolve()) or found.resolve() == data.resolve():
        raise EngineryError(f"{setting}: {path} does not lie in {data}/, so DVC would not see it change: move it there")
    return found


def open_source(params: SamplesParams, data: Path) -> Source:
    if params.source == "digits":
        return Digits()
    folder = brought(params.source, data, "samples.source", "digits")
    if not folder.is_dir():
        raise EngineryError(f"samples.source: {folder} is a file; give 'digits' or a folder of class folders")
    return ImageFolder(folder)


def split(total: int, params: SamplesParams) -> dict[str, list[int]]:
    """Disjoint and seeded. Calibration comes last, so that its size changes nothing in the other two."""
    asked = {"validation": params.validation, "training": params.training, "calibration": params.calibration}
    if sum(asked.values()) > total:
        wanted = ", ".join(f"{name} {count}" for name, count in asked.items())
        raise EngineryError(
            f"samples: {params.source} has {total} images, but params.yaml asks for {sum(asked.values())} ({wanted})"
        )
    order = np.random.default_rng(params.seed).permutation(total).tolist()
    splits: dict[str, list[int]] = {}
    start = 0
    for name, count in asked.items():
        splits[name] = order[start : start + count]
        start += count
    return splits


def write_split(source: Source, indices: Sequence[int], params: SamplesParams, folder: Path) -> None:
    """Decode in parallel, straight into a mapped file: memory does not grow with the number of images."""
    how = params.preprocessing
    shape = (len(indices), 3, how.crop, how.crop)
    samples: list[Sample] = []
    with new_folder(folder) as unfinished, ThreadPoolExecutor() as pool:
        pixels = np.lib.format.open_memmap(unfinished / PIXELS, mode="w+", dtype=np.uint8, shape=shape)
        prepared = pool.map(lambda index: source.prepare(index, how), indices)
        for position, item in enumerate(progress(prepared, f"samples, {folder.name}", len(indices))):
            samples.append(item.sample)
            pixels[position] = item.pixels
        pixels.flush()
        manifest = Manifest(
            source=params.source, preprocessing=how, class_names=source.class_names, samples=tuple(samples)
        )
        manifest.write(unfinished / MANIFEST)

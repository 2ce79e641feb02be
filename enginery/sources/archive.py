"""Arrays in a NumPy archive, mapped and not loaded: a set may be larger than memory."""

import shutil
import tempfile
import zipfile

import numpy as np
from numpy.typing import NDArray


def names_in(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def mapped(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    """Unpacked on disk, for as long as it is mapped. Pickled objects, which could run code, are refused by NumPy."""
    with archive.open(f"{name}.npy") as packed, tempfile.NamedTemporaryFile(suffix=".npy") as file:
        shutil.copyfileobj(packed, file)
        file.flush()
        array: NDArray[np.generic] = np.load(file.name, mmap_mode="r", allow_pickle=False)
        return array

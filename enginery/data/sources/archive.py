"""Map the arrays of a NumPy archive from temporary files, because they may be larger than memory."""

import shutil
import tempfile
import zipfile

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError


def names_in(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def map_array(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    """Unpack an array into a file that lasts as long as its map. NumPy refuses pickled objects: they could run code."""
    with archive.open(f"{name}.npy") as packed, tempfile.NamedTemporaryFile(suffix=".npy") as file:
        try:
            shutil.copyfileobj(packed, file)
            file.flush()
        except OSError as error:
            raise EngineryError(
                f"samples.source: {name} of {archive.filename} does not fit into {tempfile.gettempdir()}: "
                f"{error.strerror}; the variable TMPDIR names another folder"
            ) from None
        array: NDArray[np.generic] = np.load(file.name, mmap_mode="r", allow_pickle=False)
        return array

"""The preprocessing of samples and validation as a file that needs NumPy and Pillow alone.

It is the very source of enginery/preprocessing.py: a copy that is kept by hand would drift from it.
"""

import inspect
import json

from enginery.core.params.preprocessing import Preprocessing
from enginery.data import preprocessing

REPLACED = {
    "from enginery.core.errors import EngineryError\n": "",
    "from enginery.core.params import Preprocessing\n": "",
    "from pathlib import Path\n": "from pathlib import Path\nfrom types import SimpleNamespace as Preprocessing\n",
    "EngineryError": "ValueError",
}


def preprocessing_for_bundle(how: Preprocessing) -> str:
    """With what follows from the parameters: there is no class of ours in a bundle that could tell it."""
    return json.dumps(how.model_dump(mode="json") | {"channels": how.channels, "shape": how.shape}, indent=2) + "\n"


def standalone_preprocessing() -> str:
    text = inspect.getsource(preprocessing)
    for ours, plain in REPLACED.items():
        if ours not in text:
            raise AssertionError(f"enginery/preprocessing.py has no {ours.strip()!r} to replace")
        text = text.replace(ours, plain)
    return text

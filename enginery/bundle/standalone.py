"""The preprocessing of a bundle, which needs only NumPy and Pillow.

It is made from the source of enginery/data/preprocessing.py, because a second copy would drift from the first.
"""

import inspect
import json

from enginery.core.params.preprocessing import Preprocessing
from enginery.data import preprocessing

REPLACED = {
    "from enginery.core.errors import EngineryError\n": "",
    "from enginery.core.params.preprocessing import Preprocessing\n": "",
    "from pathlib import Path\n": "from pathlib import Path\nfrom types import SimpleNamespace as Preprocessing\n",
    "EngineryError": "ValueError",
}


def preprocessing_for_bundle(how: Preprocessing) -> str:
    """Return the parameters with what follows from them, because a bundle has no class that could compute it."""
    return json.dumps(how.model_dump(mode="json") | {"channels": how.channels, "shape": how.shape}, indent=2) + "\n"


def standalone_preprocessing() -> str:
    text = inspect.getsource(preprocessing)
    for ours, plain in REPLACED.items():
        if ours not in text:
            raise AssertionError(f"enginery/data/preprocessing.py has no {ours.strip()!r} to replace")
        text = text.replace(ours, plain)
    return text

"""Write the files of a bundle that are made from templates, and preprocessing that needs only NumPy and Pillow."""

import json
from collections.abc import Mapping
from pathlib import Path

from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.params.text import TextPreprocessing
from enginewright.core.templates import templates_in
from enginewright.core.text import file_size
from enginewright.speed.records import baseline_title

TEMPLATES = Path(__file__).parent / "templates"
DATA = Path(__file__).parent.parent / "data"
REPLACED = {  # to make the preprocessing from Enginewright's own source: a second copy would drift from the first
    "from enginewright.core.errors import EnginewrightError\n": "",
    "from enginewright.core.params.preprocessing import Preprocessing\n": "",
    "from pathlib import Path\n": "from pathlib import Path\nfrom types import SimpleNamespace as Preprocessing\n",
    "EnginewrightError": "ValueError",
}


REPLACED_IN_TEXTS = {
    "from enginewright.core.errors import EnginewrightError\n": "",
    "from enginewright.core.params.text import IDS, MASK, TYPES, TextPreprocessing\n": "",
    "from pathlib import Path\n": "from pathlib import Path\nfrom types import SimpleNamespace as TextPreprocessing\n",
    "Text = tuple": 'IDS, MASK, TYPES = "ids", "mask", "types"\nText = tuple',
    "EnginewrightError": "ValueError",
}


def render(template: str, facts: Mapping[str, object]) -> str:
    environment = templates_in(TEMPLATES)
    environment.filters |= {"percent": _percent, "title_of": baseline_title, "file_size": file_size}
    return environment.get_template(template).render(facts)


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{share:.2%}"


def preprocessing_for_bundle(how: Preprocessing) -> str:
    """Return the parameters with what follows from them, because a bundle has no class that could compute it."""
    return json.dumps(how.model_dump(mode="json") | {"channels": how.channels, "shape": how.shape}, indent=2) + "\n"


def texts_for_bundle(how: TextPreprocessing) -> str:
    return json.dumps(how.model_dump(mode="json") | {"meanings": how.meanings}, indent=2) + "\n"


def standalone_preprocessing() -> str:
    return _standalone("preprocessing.py", REPLACED)


def standalone_tokenization() -> str:
    return _standalone("texts.py", REPLACED_IN_TEXTS)


def _standalone(name: str, replaced: Mapping[str, str]) -> str:
    text = (DATA / name).read_text(encoding="utf-8")
    for ours, plain in replaced.items():
        if ours not in text:
            raise AssertionError(f"{name} has no {ours.strip()!r} to replace")
        text = text.replace(ours, plain)
    return text

"""Write the files of a bundle that are made from the templates beside this module."""

from collections.abc import Mapping
from pathlib import Path

import jinja2

from enginery.core.text import file_size
from enginery.speed.records import baseline_title

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, facts: Mapping[str, object]) -> str:
    """Fill a template. A name without a fact is an error, never an empty place."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": _percent, "title_of": baseline_title, "file_size": file_size}
    return environment.get_template(template).render(facts)


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{share:.2%}"

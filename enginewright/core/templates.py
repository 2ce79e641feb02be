"""Fill templates of text files. A name without a fact is an error, never an empty place."""

from functools import cache
from pathlib import Path

import jinja2


@cache  # which keeps the compiled templates, too
def templates_in(folder: Path) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

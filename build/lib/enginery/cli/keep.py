"""Write into params.yaml what a search found."""

import re
from pathlib import Path

from enginery.cli.recipes import Content, edit_params
from enginery.core.errors import EngineryError
from enginery.core.params.all import Params
from enginery.core.params.section import PARAMS_FILE
from enginery.search.records import Search

SEARCHED = Path("artifacts/searched")


def freeze_search(precision: str) -> str:
    """Keep the nodes that the search spared, and search no more. Return what was done, as a sentence."""
    searches = Params.read().search
    if precision not in searches:
        raise EngineryError(
            f"{PARAMS_FILE} searches nothing for '{precision}': search has {', '.join(searches) or 'no precision'}"
        )
    found = Search.read(SEARCHED / f"{precision}.json")

    def freeze(params: Content) -> None:
        section = params["precisions"][precision]
        section["from"] = "calibrated"
        nodes = section["keep"]["nodes"]
        nodes += [pattern for name in found.spared if (pattern := re.escape(name)) not in nodes]
        params["search"] = {name: each for name, each in params["search"].items() if name != precision}

    edit_params(freeze, str(PARAMS_FILE))
    return (
        f"{PARAMS_FILE} keeps {len(found.spared)} layers of {precision} in floating point and searches no more; "
        f"`git diff {PARAMS_FILE}` shows it, `git checkout {PARAMS_FILE}` undoes it"
    )

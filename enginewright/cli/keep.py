"""Write into params.yaml what a search found."""

import re
from pathlib import Path

from enginewright.cli.recipes import Content, edit_params
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.core.params.section import PARAMS_FILE
from enginewright.quantization.rescue.records import RESCUE, Rescue
from enginewright.search.records import Search

SEARCHED, RESCUED = Path("artifacts/searched"), Path("artifacts/rescued")


def freeze_search(precision: str) -> str:
    """Keep the nodes that the search spared, and search no more. Return what was done, as a sentence.

    Where something was rescued, the search stays, since rescues come before it: it ends with its first try.
    """
    searches = Params.read().search
    if precision not in searches:
        raise EnginewrightError(
            f"{PARAMS_FILE} searches nothing for '{precision}': search has {', '.join(searches) or 'no precision'}"
        )
    found = Search.read(SEARCHED / f"{precision}.json")
    was_rescued = bool(Rescue.read(RESCUED / precision / RESCUE).kept)
    if was_rescued and not found.spared:
        return (
            f"the search spared no layer of {precision}, and its rescues need the search: {PARAMS_FILE} stays as it is"
        )

    def freeze(params: Content) -> None:
        section = params["precisions"][precision]
        nodes = section["keep"]["nodes"]
        nodes += [pattern for name in found.spared if (pattern := re.escape(name)) not in nodes]
        if was_rescued:
            return
        section["from"] = "calibrated"
        params["search"] = {name: each for name, each in params["search"].items() if name != precision}

    edit_params(freeze, str(PARAMS_FILE))
    layers = f"{len(found.spared)} layers" if found.spared else "no layer"
    then = "searches only what is left to do after rescues" if was_rescued else "searches no more"
    return (
        f"{PARAMS_FILE} keeps {layers} of {precision} in floating point and {then}; "
        f"`git diff {PARAMS_FILE}` shows it, `git checkout {PARAMS_FILE}` undoes it"
    )

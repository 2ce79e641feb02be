"""`enginewright keep`: write into params.yaml what a search found."""

import re
from argparse import ArgumentParser, Namespace
from pathlib import Path

from enginewright.cli.arguments import PRECISION, add_completed
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Content, Params, edit_params, overlay
from enginewright.core.params.section import PARAMS_FILE
from enginewright.precision.records import RESCUE, Rescue, Search

SEARCHED, RESCUED = Path("artifacts/searched"), Path("artifacts/rescued")
EXAMPLES = """\
examples:
  enginewright keep int8

The layers that the search spared go to precisions.int8.keep.nodes,
precisions.int8.from becomes calibrated, and search.int8 is removed, unless
int8 was rescued. `git checkout params.yaml` undoes it. Exits 0, or 1
if nothing was searched."""


def add_arguments(command: ArgumentParser) -> None:
    add_completed(command, "precision", PRECISION, help="a precision whose `from` is searched")


def run(chosen: Namespace) -> int:
    print(freeze_search(chosen.precision))
    return 0


def freeze_search(precision: str) -> str:
    """Keep the nodes that the search spared, and search no more. Return what was done, as a sentence. Where something
    was rescued, the search stays, since rescues come before it: it ends with its first try."""
    asked = Params.read()
    if precision not in asked.search:
        known = ", ".join(asked.search) or "no precision"
        raise EnginewrightError(f"{PARAMS_FILE} searches nothing for '{precision}': search has {known}")
    found = Search.read(SEARCHED / f"{precision}.json")
    was_rescued = bool(Rescue.read(RESCUED / precision / RESCUE).kept)
    if was_rescued and not found.spared:
        return f"the search spared no layer of {precision}, and its rescues need it: {PARAMS_FILE} stays as it is"
    kept = dict.fromkeys((*asked.precisions[precision].keep.nodes, *map(re.escape, found.spared)))

    def freeze(params: Content) -> None:
        changes = {"keep": {"nodes": list(kept)}} | ({} if was_rescued else {"from": "calibrated"})
        overlay(params, {"precisions": {precision: changes}})
        if not was_rescued:
            params["search"] = {name: each for name, each in params["search"].items() if name != precision}

    edit_params(freeze, str(PARAMS_FILE))
    layers = f"{len(found.spared)} layers" if found.spared else "no layer"
    then = "searches only what is left to do after rescues" if was_rescued else "searches no more"
    return (
        f"{PARAMS_FILE} keeps {layers} of {precision} in floating point and {then}; "
        f"`git diff {PARAMS_FILE}` shows it, `git checkout {PARAMS_FILE}` undoes it"
    )

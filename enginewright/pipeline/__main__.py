"""Make ready for `dvc repro`: lay a recipe over params.yaml, if one is given, check params.yaml, of which DVC's own
messages say less, and mend what a kill left."""

import sys
from pathlib import Path

from enginewright.core.errors import errors_in_words
from enginewright.core.process import outlive_crashes


def make_ready(recipes: list[str]) -> None:
    from enginewright.core.installing import old_name_hint, require_new_enough, upgrade_hint
    from enginewright.core.params.all import Params, apply_recipe
    from enginewright.pipeline.dependencies import complete_for_dvc
    from enginewright.pipeline.recovery import mend_after_a_kill

    require_new_enough()
    for recipe in recipes:
        apply_recipe(Path(recipe))
        print(f"params.yaml now follows {recipe}; `dvc params diff` shows how, `git checkout params.yaml` undoes it")
    added = complete_for_dvc(Params.read())
    for sentence in filter(None, (upgrade_hint(), old_name_hint(), added, *mend_after_a_kill(Path()))):
        print(sentence, file=sys.stderr)


outlive_crashes("params.yaml")  # such as the reader of YAML, on thousands of brackets within each other
with errors_in_words():
    make_ready(sys.argv[1:])

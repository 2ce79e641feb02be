"""Apply a recipe: a file with the parameters that differ, laid over params.yaml without losing its comments."""

import sys
from pathlib import Path

from enginewright.core.errors import sentence_of
from enginewright.core.params.edit import edit_params, overlay, read_content
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.process import outlive_crashes


def apply_recipe(recipe: Path, params_file: Path = PARAMS_FILE) -> None:
    """Change params.yaml, unless the result would not be valid."""
    changes = read_content(recipe)
    edit_params(lambda params: overlay(params, changes), str(recipe), params_file)


def main() -> None:
    recipe = Path(sys.argv[1])
    try:
        apply_recipe(recipe)
    except Exception as error:
        if sentence := sentence_of(error):
            sys.exit(f"recipe: {sentence}")
        raise
    print(f"{PARAMS_FILE} now follows {recipe}; `dvc params diff` shows how, `git checkout {PARAMS_FILE}` undoes it")


if __name__ == "__main__":
    outlive_crashes("recipe")  # such as the reader of YAML, on thousands of brackets within each other
    main()

"""Arguments that are paths: the shell completes them."""

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

FOLDER = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}
FILE = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}


def add_path(command: ArgumentParser, name: str, kind: dict[str, str], type: type = Path, **more: Any) -> None:
    def path(given: str) -> Any:
        if not given:
            raise ArgumentTypeError("it is empty: was a variable of the shell not set?")
        return type(given)

    command.add_argument(name, type=path, **more).complete = kind  # type: ignore[attr-defined]


def add_engine(command: ArgumentParser) -> None:
    add_path(command, "engine", FOLDER, help="an engine's folder, such as artifacts/engines/int8")

"""Find the code that each stage runs, so that a stage runs again when that changes, and for nothing else.

The code of a stage is every module of the project that it imports, wherever in a file the import stands, and every
template beside one. A module counts by what it does: comments, docstrings and formatting make no difference.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from enginery.core.files import sha256
from enginery.core.record import Record
from enginery.core.runtimes import RUNTIMES
from enginery.pipeline.source import Sources

ROOT = Path(__file__).parents[2]
PACKAGES = ("enginery", "stages")
RUNTIMES_ROOM = "enginery.engine.runtimes"
MAKES_THE_MODEL = "enginery.model.factory"  # a stage that imports it runs the user's own code


class StageCode(Record):
    """What a stage runs: the project's modules, each with a digest, and the files of the user's own model."""

    modules: dict[str, str]
    model: dict[str, str]


def code_of_stages(runtimes: Collection[str], model: Mapping[str, str]) -> dict[str, StageCode]:
    """Return the code of each stage. Runtimes that are not in use are left out: no result depends on them."""
    unused = set(map(_runtime_module, RUNTIMES)) - set(map(_runtime_module, runtimes))
    with Sources() as sources:
        return {stage: code_of(stage, unused, model, sources) for stage in stage_names()}


def _runtime_module(name: str) -> str:
    return f"{RUNTIMES_ROOM}.{'tensorrt' if RUNTIMES[name].is_tensorrt else name}"  # one module for NVIDIA's two


def stage_names() -> list[str]:
    return sorted(file.stem for file in (ROOT / "stages").glob("*.py") if file.stem != "__init__")


def code_of(stage: str, unused: Collection[str], model: Mapping[str, str], sources: Sources) -> StageCode:
    modules = imported_by(f"stages.{stage}", unused, sources)
    digests: dict[str, str] = {}
    for file in sorted(modules.values()):
        digests[file.relative_to(ROOT).as_posix()] = sources.parsed(file).digest
        digests |= _templates_beside(file)
    return StageCode(modules=digests, model=dict(model) if MAKES_THE_MODEL in modules else {})


def imported_by(module: str, unused: Collection[str], sources: Sources) -> dict[str, Path]:
    """Return the files of the module, and of all modules of the project that importing it can lead to, by name."""
    found: dict[str, Path] = {}
    waiting = list(_with_parents(module))
    while waiting:
        name = waiting.pop()
        if name not in found and name not in unused and (file := _file_of(name)):
            found[name] = file
            waiting += [parent for imported in sources.parsed(file).imports for parent in _with_parents(imported)]
    return found


def _with_parents(name: str) -> Iterator[str]:
    """Importing a.b.c runs a.b as well. It runs a, too, but that is the door for others, of no effect on a stage."""
    parts = name.split(".")
    if parts[0] in PACKAGES:
        yield from (".".join(parts[:count]) for count in range(2, len(parts) + 1))


@cache
def _file_of(module: str) -> Path | None:
    """Return None for what is no module: `from a import b` may name something that is defined in a."""
    place = ROOT.joinpath(*module.split("."))
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


@cache
def _templates_beside(module: Path) -> dict[str, str]:
    others = (file for file in module.parent.iterdir() if file.is_file() and file.suffix not in (".py", ".pyc"))
    return {file.relative_to(ROOT).as_posix(): sha256(file) for file in others}

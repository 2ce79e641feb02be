"""Find the code that each stage runs, so that a stage runs again when its code changes, and only then.

The code of a stage is each module of the project that it imports, at any place of a file, and each file that lies
beside such a module, such as a template. Comments, docstrings and formatting of a module make no difference.
"""

from collections.abc import Collection, Mapping
from itertools import accumulate
from pathlib import Path

from enginewright.core.files import sha256
from enginewright.core.record import Record
from enginewright.core.runtimes import RUNTIMES
from enginewright.pipeline.source import KeptSources

ROOT = Path(__file__).parents[2]
PACKAGES = ("enginewright", "stages")
RUNTIMES_PACKAGE = "enginewright.engine.runtimes"
RUNNER = "stages.__main__"
# A stage that imports one of these runs the user's own code.
MODEL_FACTORY, TASK = "enginewright.model.factory", "enginewright.tasks.choose"


class StageCode(Record):
    """The code of one stage: the digest of each file of the project, and of each file of the user's model and task."""

    modules: dict[str, str]
    model: dict[str, str]
    task: dict[str, str]


def code_of_stages(
    runtimes: Collection[str], model: Mapping[str, str], task: Mapping[str, str], root: Path = ROOT
) -> dict[str, StageCode]:
    """Return the code of each stage, without the runtimes that are not in use: no result depends on them."""
    unused = {_module_of_runtime(name) for name in RUNTIMES} - {_module_of_runtime(name) for name in runtimes}
    with KeptSources(root / "enginewright" / "__pycache__" / "sources.json") as sources:
        modules = Modules(root, unused, sources)
        imported = {stage: modules.imported_by(RUNNER, f"stages.{stage}") for stage in modules.stages()}
        return {
            stage: StageCode(
                modules=dict(sorted(item for name in names for item in modules.digests(name).items())),
                model=dict(model) if MODEL_FACTORY in names else {},
                task=dict(task) if TASK in names else {},
            )
            for stage, names in imported.items()
        }


def _module_of_runtime(name: str) -> str:
    return f"{RUNTIMES_PACKAGE}.{'tensorrt' if RUNTIMES[name].is_tensorrt else name}"  # NVIDIA's two share a module


class Modules:
    def __init__(self, root: Path, unused: Collection[str], sources: KeptSources) -> None:
        self._root, self._sources = root, sources
        files = (file for package in PACKAGES for file in sorted((root / package).rglob("*.py")))
        self._files = {name: file for file in files if (name := self._name_of(file)) not in (*PACKAGES, *unused)}
        self._imports: dict[str, set[str]] = {}
        self._templates: dict[Path, dict[str, str]] = {}

    def stages(self) -> list[str]:
        return [name.removeprefix("stages.") for name in self._files if name.startswith("stages.") and name != RUNNER]

    def imported_by(self, *modules: str) -> set[str]:
        """Return these modules and each module that importing them can lead to."""
        found: set[str] = set()
        waiting = set(modules)
        while waiting:
            found |= waiting
            waiting = {name for each in waiting for name in self._imports_of(each)} - found
        return found

    def digests(self, module: str) -> dict[str, str]:
        """Return the digest of the module's file, and of each file beside it that is no code."""
        file = self._files[module]
        return {self._path(file): self._sources.read(file).digest} | self._templates_in(file.parent)

    def _name_of(self, file: Path) -> str:
        return ".".join(file.relative_to(self._root).with_suffix("").parts).removesuffix(".__init__")

    def _imports_of(self, module: str) -> set[str]:
        if module not in self._imports:
            imports = self._sources.read(self._files[module]).imports
            # Importing a.b.c runs a and a.b, too.
            named = {name for each in (module, *imports) for name in accumulate(each.split("."), "{}.{}".format)}
            self._imports[module] = named & self._files.keys()  # `from a import b` may name a function of a
        return self._imports[module]

    def _templates_in(self, folder: Path) -> dict[str, str]:
        if folder not in self._templates:
            named = (file for file in folder.iterdir() if file.is_file() and file.suffix not in (".py", ".pyc"))
            others = (file for file in named if not file.name.startswith(".") and not file.name.endswith("~"))
            self._templates[folder] = {self._path(file): sha256(file) for file in others}
        return self._templates[folder]

    def _path(self, file: Path) -> str:
        return file.relative_to(self._root).as_posix()

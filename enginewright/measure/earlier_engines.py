"""Find the engines of an earlier run: in the folder of a project, or in DVC's cache by their hashes."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dvc.exceptions import NotDvcRepoError
from dvc.repo import Repo
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.tree import Tree
from dvc_objects.errors import ObjectFormatError
from ruamel.yaml.error import YAMLError

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.files import ENGINES, LOCK, scratch_folder
from enginewright.core.params.section import load_yaml
from enginewright.engine.record import RECORD, EngineRecord
from enginewright.measure.changes import read_measurements, show_in_git
from enginewright.measure.history import GOOD_ENGINES


@contextmanager
def engines_of(place: str) -> Iterator[Callable[[str], Path]]:
    """Open the engines of a reports folder, a history's good run or a git revision: give their folders by precision."""
    measured = {entry.precision: entry.validation.engine for entry in read_measurements(place).precisions}
    path, hashes = Path(place), dict[str, str]()
    if path.is_file():
        hashes = _hashes_of_good_run(path)
    elif not path.exists():
        shown = show_in_git(place, LOCK)
        if shown.returncode:
            raise EnginewrightError(f"{place} has no {LOCK}, which would name its engines")
        hashes = parse_hashes(shown.stdout, f"{place}:{LOCK}")
    with scratch_folder() as scratch:

        def find(precision: str) -> Path:
            if path.is_dir():
                folder = path.parent / ENGINES / precision
                if not folder.is_dir():
                    raise EnginewrightError(f"{folder} is missing: run `dvc checkout` or `dvc repro` in that project")
            else:
                folder = _folder_from_cache(hashes, place, scratch, precision)
            if EngineRecord.read(folder / RECORD).identity != measured.get(precision):
                raise EnginewrightError(
                    f"the engine of {precision} that goes with {place} is not the one that was measured there: "
                    "`dvc checkout` brings engines and reports together"
                )
            return folder

        yield find


def parse_hashes(lock: bytes, origin: str) -> dict[str, str]:
    """Read DVC's hash of each engine's folder from the text of a dvc.lock, by precision."""
    made = hashes_of_outs(lock, origin)
    return {name.removeprefix("build@"): outs[0] for name, outs in made.items() if name.startswith("build@")}


def hashes_of_outs(lock: bytes, origin: str) -> dict[str, list[str]]:
    """Read DVC's hashes of what each stage made, which is at least one thing, but for the gate."""
    try:
        stages = load_yaml(lock)["stages"]
        made = {name: [str(out["md5"]) for out in stage["outs"]] for name, stage in stages.items() if "outs" in stage}
    except (YAMLError, LookupError, *UNREADABLE):
        made = {"": []}
    if not all(made.values()):
        raise EnginewrightError(f"{origin} is not a lock file of DVC. Take it back from git")
    return made


def _hashes_of_good_run(good: Path) -> dict[str, str]:
    path = good.with_name(GOOD_ENGINES)
    if not path.exists():
        raise EnginewrightError(
            f"{good} has no {GOOD_ENGINES} beside it, which would name its engines: delete this good run, and the next "
            "good night becomes the good run"
        )
    try:
        return {str(name): str(value) for name, value in json.loads(path.read_text(encoding="utf-8")).items()}
    except UNREADABLE:
        raise EnginewrightError(f"{path} is damaged. Take the file back from git") from None


def _folder_from_cache(hashes: Mapping[str, str], place: str, scratch: Path, precision: str) -> Path:
    if precision not in hashes:
        raise EnginewrightError(f"{place} has no engine of {precision}")
    folder = scratch / precision
    folder.mkdir()
    try:
        with Repo() as repo:
            cache = repo.cache.local
            for name, (_, file) in Tree.load(cache, HashInfo("md5", hashes[precision])).iteritems():
                folder.joinpath(*name).symlink_to(Path(cache.oid_to_path(file.value)).resolve(strict=True))
    except (NotDvcRepoError, ObjectFormatError, FileNotFoundError):
        raise EnginewrightError(
            f"the engine of {precision} that {place} had is not in DVC's cache here: it was made elsewhere, or "
            "removed. `dvc repro` in that state makes it again"
        ) from None
    return folder

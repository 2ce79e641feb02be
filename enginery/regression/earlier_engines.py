"""The engines of an earlier run: as they lie in a project, or out of DVC's cache by the hash that names them there."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from dvc.exceptions import NotDvcRepoError
from dvc.repo import Repo
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.tree import Tree
from dvc_objects.errors import ObjectFormatError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from enginery.core.errors import EngineryError
from enginery.core.paths import ENGINES, LOCK
from enginery.engine.folder import RECORD
from enginery.engine.record import EngineRecord
from enginery.regression.history import GOOD_ENGINES
from enginery.regression.measurements import read_measurements

BUILT = re.compile(r"build@(.+)")


@contextmanager
def engines_of(place: str) -> Iterator[Callable[[str], Path]]:
    """By precision, the folders of a project's reports folder, of a history's good run, or of a git revision.

    What had to be linked out of the cache is gone afterwards.
    """
    measured = {entry.precision: entry.validation.engine for entry in read_measurements(place).precisions}
    with TemporaryDirectory(prefix="enginery-") as scratch:
        path = Path(place)
        if path.is_dir():
            locate = partial(_lying_in, path.parent / ENGINES)
        else:
            hashes = hashes_beside(path) if path.exists() else hashes_at(place)
            locate = partial(_checked_out, hashes, place, Path(scratch))

        def find(precision: str) -> Path:
            folder = locate(precision)
            if EngineRecord.read(folder / RECORD).identity != measured.get(precision):
                raise EngineryError(
                    f"the engine of {precision} that goes with {place} is not the one that was measured there: "
                    "`dvc checkout` brings engines and reports together"
                )
            return folder

        yield find


def hashes_at(revision: str) -> dict[str, str]:
    shown = subprocess.run(["git", "show", f"{revision}:./{LOCK}"], capture_output=True, text=True)
    if shown.returncode:
        raise EngineryError(f"{revision} has no {LOCK}, which would say which engines are its own")
    return hashes_in(shown.stdout, f"{revision}:{LOCK}")


def hashes_in(lock: str, what: str) -> dict[str, str]:
    """DVC's hash of each engine's folder, by precision, out of the text of a dvc.lock."""
    try:
        stages = YAML(typ="safe").load(lock)["stages"]
        return {named[1]: stage["outs"][0]["md5"] for name, stage in stages.items() if (named := BUILT.fullmatch(name))}
    except (YAMLError, AttributeError, KeyError, TypeError, IndexError):
        raise EngineryError(f"{what} is no lock file of DVC's. Take it back from git") from None


def hashes_beside(good: Path) -> dict[str, str]:
    path = good.with_name(GOOD_ENGINES)
    if not path.exists():
        raise EngineryError(
            f"{good} has no {GOOD_ENGINES} beside it, which would say which engines are its own: delete a good run "
            "that is older than that, and the next good night begins anew"
        )
    try:
        return {str(name): str(value) for name, value in json.loads(path.read_text()).items()}
    except (ValueError, AttributeError):
        raise EngineryError(f"{path} is damaged. Take the file back from git") from None


def _checked_out(hashes: Mapping[str, str], whose: str, scratch: Path, precision: str) -> Path:
    if precision not in hashes:
        raise EngineryError(f"{whose} has no engine of {precision}")
    folder = scratch / precision
    folder.mkdir()
    try:
        with Repo() as repo:
            cache = repo.cache.local
            for name, (_, file) in Tree.load(cache, HashInfo("md5", hashes[precision])).iteritems():
                folder.joinpath(*name).symlink_to(Path(cache.oid_to_path(file.value)).resolve(strict=True))
    except (NotDvcRepoError, ObjectFormatError, FileNotFoundError):
        raise EngineryError(
            f"the engine of {precision} that {whose} had is not in DVC's cache here: it was made elsewhere, or "
            "removed. `dvc repro` in that state makes it anew"
        ) from None
    return folder


def _lying_in(engines: Path, precision: str) -> Path:
    if not (engines / precision).is_dir():
        raise EngineryError(f"{engines / precision} is missing: run `dvc checkout` or `dvc repro` in that project")
    return engines / precision

"""Finding an engine by what someone typed."""

import difflib
from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.core.records import EngineRecord
from enginery.engines import RECORD, require_whole

ENGINES = Path("artifacts/engines")
BUNDLED = "engine"  # where a bundle has its own


def read_engine(folder: Path) -> EngineRecord:
    require_engine(folder)
    record = EngineRecord.read(folder / RECORD)
    require_whole(record, folder)
    return record


def require_engine(folder: Path) -> None:
    if (folder / RECORD).is_file():
        return
    if (inner := folder / BUNDLED / RECORD).is_file():
        raise EngineryError(f"{folder} is a bundle, whose engine is {inner.parent}: give that folder")
    near = _engines_near(folder)
    nearest = difflib.get_close_matches(folder.name, near, n=1, cutoff=0.4)
    cure = f"; did you mean {near[nearest[0]]}?" if nearest else f": `dvc repro` makes one per precision, in {ENGINES}"
    if folder.exists():
        raise EngineryError(f"{folder} is not an engine's folder{cure}")
    raise EngineryError(f"there is no engine {folder}{cure}")


def _engines_near(folder: Path) -> dict[str, Path]:
    """By name: those beside the folder, and those of the pipeline, for who gives a precision alone."""
    found = [record.parent for place in (ENGINES, folder.parent) for record in sorted(place.glob(f"*/{RECORD}"))]
    return {engine.name: engine for engine in found}

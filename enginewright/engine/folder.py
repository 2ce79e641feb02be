"""The folder of an engine: find it from what a user typed, and check it before anything in it is used."""

import difflib
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.paths import ENGINES
from enginewright.engine.record import EngineRecord, Refusal
from enginewright.graph.files import graph_sha256

RECORD, REPRODUCE, REFUSED = "engine.json", "reproduce.sh", "refused.json"
BUNDLED = "engine"  # the folder of the engine inside a bundle
WEIGHTS = "model.onnx"  # the graph whose weights an engine takes that has none, and the data file that it refers to


def read_engine(folder: Path) -> EngineRecord:
    """Return the record of the engine, and refuse it if a file is damaged or missing. An engine is executable code, and
    a runtime's own checks miss damage: the hashes are checked before anything else."""
    require_engine(folder)
    record = EngineRecord.read(folder / RECORD)
    for name, expected in record.files.items():
        file = folder / name
        if not file.exists() or sha256(file) != expected:
            state = "is damaged: its hash differs from the one in engine.json" if file.exists() else "is missing"
            raise EnginewrightError(
                f"{file} {state}. Run `dvc repro` to build it again, or `dvc checkout` to restore it"
            )
    return record


def require_weights(record: EngineRecord, folder: Path) -> None:
    """Refuse an engine without weights if the files that have them are missing, or are not those of its build."""
    for name, expected in record.weights.items():
        file = weights_of(folder).with_name(name)
        if not file.exists() or sha256(file) != expected:
            state = "has another hash than engine.json says" if file.exists() else "is missing"
            raise EnginewrightError(
                f"{folder} has no weights of its own (build.tensorrt.weights: stripped), and {file}, which has them, "
                f"{state}: put the file there that has sha256 {expected[:12]}, or build the engine again"
            )


def weights_of(folder: Path) -> Path:
    """Return the graph whose weights an engine takes: in its folder, or beside that, where a bundle has it."""
    beside = folder.resolve().parent / WEIGHTS
    return beside if beside.exists() and not (folder / WEIGHTS).exists() else folder / WEIGHTS


def read_refusal(folder: Path) -> Refusal | None:
    """Return why there is no engine in this folder, or None if there should be one."""
    return Refusal.read(folder / REFUSED) if (folder / REFUSED).is_file() else None


def pass_on_refusal(engine: Path, report: Path) -> bool:
    """Tell whether there is no engine to measure. The refusal is then written in the place of its measurements."""
    refusal = read_refusal(engine)
    if refusal:
        refusal.write(report)
        print(f"{refusal.precision}: was not built, so there is nothing to measure")
    return refusal is not None


def require_made_of(record: EngineRecord, precision: str, onnx: Path) -> None:
    """Refuse an engine of another graph or precision: it might agree with PyTorch and would prove nothing."""
    if record.precision != precision or record.onnx_sha256 != graph_sha256(onnx):
        raise EnginewrightError(f"the engine was not built as {precision} of {onnx}: run `dvc repro` to build it again")


def require_engine(folder: Path) -> None:
    if (folder / RECORD).is_file():
        return
    if refusal := read_refusal(folder):
        raise EnginewrightError(f"{folder} has no engine: {refusal.why}")
    if (inner := folder / BUNDLED / RECORD).is_file():
        raise EnginewrightError(f"{folder} is a bundle, whose engine is {inner.parent}: give that folder")
    # A user who writes a bare name may mean an engine beside the folder, or one of the pipeline's.
    found = [record.parent for place in (ENGINES, folder.parent) for record in sorted(place.glob(f"*/{RECORD}"))]
    near = {engine.name: engine for engine in found}
    nearest = difflib.get_close_matches(folder.name, near, n=1, cutoff=0.4)
    cure = f"; did you mean {near[nearest[0]]}?" if nearest else f": `dvc repro` makes one per precision, in {ENGINES}"
    what = f"{folder} is not an engine's folder" if folder.exists() else f"there is no engine {folder}"
    raise EnginewrightError(f"{what}{cure}")

"""Name what an answer is about by content: other images or other code under the same name are another subject."""

from pathlib import Path
from typing import Any

from enginewright.core.files import sha256, sha256_of
from enginewright.core.params.all import Params
from enginewright.core.paths import LOCK
from enginewright.core.tasks import is_own
from enginewright.core.user_files import WEIGHTS_WITHOUT_FILE
from enginewright.model.user_code import files_named_in, fingerprint, fingerprint_of_task
from enginewright.regression.earlier_engines import hashes_of_outs


def digest_of_subject(params: Params) -> str:
    """Return a digest of the parameters of the model, its weights and the samples, and of what is in their files. It is
    the same on all machines: weights that are trained are known by their samples, as each machine trains its own."""
    sections = {"task": True, "model": True, "weights": True, "samples": True}
    return sha256_of([params.model_dump(mode="json", include=sections, exclude_defaults=True), _files_of(params)])


def _files_of(params: Params) -> dict[str, Any]:
    model, weights = params.model, params.weights.source
    places = [] if weights in WEIGHTS_WITHOUT_FILE else [Path(weights)]
    if model.is_onnx:
        places.append(Path(model.source))
    if model.library == "transformers":
        places.append(Path(model.library_name))
    return {
        "files": {str(file): sha256(file) for place in places if place.exists() for file in _files_in(place)},
        "model": fingerprint(model.source) | files_named_in(model.arguments) if model.is_factory else {},
        "task": fingerprint_of_task(params.task) if is_own(params.task) else {},
        "samples": _samples(),
    }


def _files_in(place: Path) -> list[Path]:
    return sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]


def _samples() -> list[str]:
    """Return DVC's hashes of the samples as they were made last."""
    made = hashes_of_outs(LOCK.read_bytes(), str(LOCK)) if LOCK.exists() else {}
    return made.get("samples", [])

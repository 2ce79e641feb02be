"""The parameters that each stage depends on, and their values, defaults too.

DVC fails on a parameter that params.yaml leaves out, and would not see a default change. So the stage `machine` writes
the values to a file for each stage, on which the stage depends.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from enginewright.core.files import new_file
from enginewright.core.params.all import Params
from enginewright.core.params.edit import edit_params, overlay
from enginewright.core.params.section import PARAMS_FILE, read_yaml

# Not build.profile.batch.opt: the size that engines are tuned for changes nothing in a graph.
BATCH = ("build.profile.batch.min", "build.profile.batch.max")
SIZES = (*BATCH, "build.profile.height", "build.profile.width", "build.profile.axes")
TASK = ("model.scores", "model.boxes")
OF_STAGE = {
    "samples": ("samples",),
    "weights": ("model.source", "model.arguments", "model.scores", "weights"),
    "export": ("export", *TASK, *SIZES),
    "simplify": SIZES,
    "reference": (*TASK, *BATCH),
    "calibrate": ("calibration",),
    "build": ("build", *TASK),
    "benchmark": ("benchmark", "inference"),
    "race": ("benchmark", "inference"),
    "trace": ("inference",),
    "report": tuple(field.alias or name for name, field in Params.model_fields.items()),  # the page shows all
}
# These have a file for each precision that they run for.
OF_PRECISION = {
    "rescue": ("calibration.batch", "precisions.{key}.keep", "precisions.{key}.rescue"),
    "search": ("search.{key}", "precisions.{key}.keep", "precisions.{key}.thresholds", *TASK),
    "mix": (
        "mix.{key}", "precisions.{key}.thresholds", "precisions.int8.keep", "precisions.{floating}.keep", "build",
        "inference", *TASK,
    ),
    "convert": ("precisions.{key}.from", "precisions.{key}.keep"),
    "validate": ("precisions.{key}.thresholds", "inference", "validation"),
}  # fmt: skip


def write_parameters(params: Params, folder: Path) -> None:
    """Write the file of each stage, and leave those as they are that say the same already."""
    content = params.model_dump(mode="json", by_alias=True)
    for stage, places in OF_STAGE.items():
        _write(folder / f"{stage}.json", places, content)
    for stage, places in OF_PRECISION.items():
        section = {"rescue": "search", "search": "search", "mix": "mix"}.get(stage, "precisions")
        for key, item in content[section].items():
            named = [place.format(key=key, floating=item.get("floating")) for place in places]
            _write(folder / stage / f"{key}.json", named, content)


def _write(path: Path, places: Iterable[str], content: Mapping[str, Any]) -> None:
    values = {}
    for place in places:
        value: Any = content
        for name in place.split("."):
            value = value[name]
        values[place] = value
    text = json.dumps(values, indent=2) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        with new_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def what_dvc_misses(params: Params, file: Path = PARAMS_FILE) -> dict[str, Any]:
    """Return the entries of params.yaml that dvc.yaml itself reads, and for which it knows no default."""
    given = read_yaml(file)
    missing: dict[str, Any] = {}
    for section, entry, values in (
        ("precisions", "from", {name: each.made_from for name, each in params.precisions.items()}),
        ("mix", "floating", {name: each.floating for name, each in params.mix.items()}),
    ):
        for name, value in values.items():
            if entry not in ((given.get(section) or {}).get(name) or {}):
                missing.setdefault(section, {})[name] = {entry: value}
    if unnamed := params.search.keys() - (given.get("search") or {}):
        missing["search"] = {name: {} for name in params.search if name in unnamed}
    return missing


def complete_for_dvc(params: Params, file: Path = PARAMS_FILE) -> str | None:
    """Write these entries, and return a sentence that says so."""
    if not (missing := what_dvc_misses(params, file)):
        return None
    edit_params(lambda content: overlay(content, missing), str(file), file)
    names = ", ".join(f"{section}.{name}" for section, entries in missing.items() for name in entries)
    return f"{file}: wrote the defaults of {names}, which dvc.yaml reads from there"

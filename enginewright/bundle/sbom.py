"""List what a bundle consists of and needs: sbom.cdx.json, in CycloneDX, and its licences, as far as they are known."""

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_OID, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import enginewright
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.engine.record import EngineRecord

LICENCE = "Apache-2.0"  # of Enginewright itself
NOT_NAMED = "none is named in its distribution: ask its authors"
NOT_INSTALLED = "not known, since it is not installed here: ask where it comes from"


def licence_of(*distributions: str) -> str:
    """Return the licence that the first installed of these distributions declares."""
    for name in distributions:
        try:
            found = importlib.metadata.metadata(name).json
        except importlib.metadata.PackageNotFoundError:
            continue
        return str(found.get("license_expression") or found.get("license") or "").partition("\n")[0] or NOT_NAMED
    return NOT_INSTALLED


def licence_text() -> str:
    """Return the text of Enginewright's own licence: an installed file, or one of the checkout that Python imports."""
    places = []
    with suppress(importlib.metadata.PackageNotFoundError):
        installed = importlib.metadata.files("enginewright") or []
        places = [Path(str(file.locate())) for file in installed if file.name == "LICENSE"]
    checkout = Path(enginewright.__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        places.append(checkout / "LICENSE")
    for path in filter(Path.is_file, places):
        return path.read_text(encoding="utf-8")
    raise EnginewrightError(
        "this installation of Enginewright lacks its LICENSE, which belongs into a bundle: install it again"
    )


def write_sbom(record: EngineRecord, model: str, requirements: list[str], files: list[Path], folder: Path) -> None:
    """Write the model with the hashes of its files, and each package that the example needs, also for another package.
    The same bundle gives the same bytes: there is no time in it, and its number follows from the engine."""
    kind, version = "machine-learning-model", record.onnx_sha256[:12]
    names = [path.relative_to(folder).as_posix() for path in files]
    hashes = [{"alg": "SHA-256", "content": sha256(path)} for path in files]
    parts = [
        {"type": "file", "name": name, "bom-ref": f"file:{name}", "hashes": [content]}
        for name, content in zip(names, hashes, strict=True)
    ]
    packages = packages_for(requirements)
    asked = [canonicalize_name(Requirement(line).name) for line in requirements]
    needed = {"model": [f"file:{name}" for name in names] + [f"package:{name}" for name in asked]}
    needed |= {f"package:{name}": [f"package:{each}" for each in more] for name, (_, more) in packages.items()}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_OID, record.identity)}",
        "metadata": {"component": {"type": kind, "name": model, "version": version, "bom-ref": "model"}},
        "components": [*parts, *(_library(name, version) for name, (version, _) in packages.items())],
        "dependencies": [{"ref": name, "dependsOn": sorted(set(more))} for name, more in needed.items()],
    }
    (folder / "sbom.cdx.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def packages_for(requirements: Sequence[str]) -> Mapping[str, tuple[str | None, Sequence[str]]]:
    """Return the version of each package and the names of those that it needs itself, as they are installed here."""
    found: dict[str, tuple[str | None, Sequence[str]]] = {}
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        each = waiting.pop()
        if (name := canonicalize_name(each.name)) in found:
            continue
        pinned = next((one.version for one in each.specifier if one.operator == "=="), None)
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = (pinned, ())
            continue
        needed = [Requirement(line) for line in installed.requires or []]
        needed = [one for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
        found[name] = (pinned or installed.version, [canonicalize_name(one.name) for one in needed])
        waiting += needed
    return found


def _library(name: str, version: str | None) -> dict[str, Any]:
    at, licence = f"@{quote(version)}" if version else "", licence_of(name)
    known = {} if licence in (NOT_NAMED, NOT_INSTALLED) else {"description": f"licence: {licence}"}
    known |= {"version": version} if version else {}
    return {"type": "library", "name": name, "bom-ref": f"package:{name}", "purl": f"pkg:pypi/{name}{at}"} | known

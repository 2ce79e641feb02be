"""List what a bundle consists of and needs: sbom.cdx.json, in CycloneDX, and its licences, as far as they are known."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
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


def write_sbom(
    record: EngineRecord, model: str, requirements: Sequence[str], files: Sequence[Path], folder: Path
) -> None:
    """Write the model with the hashes of its files, and each package that the example needs, also for another package.
    The same bundle gives the same bytes: there is no time in it, and its number follows from the engine."""
    bom = Bom(serial_number=uuid5(NAMESPACE_OID, record.identity))
    bom.metadata.timestamp = None  # type: ignore[assignment]  # which the format allows
    whole = Component(
        name=model, version=record.onnx_sha256[:12], type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref="model"
    )
    bom.metadata.component = whole
    parts = []
    for path in files:
        name, hashes = path.relative_to(folder).as_posix(), [HashType(alg=HashAlgorithm.SHA_256, content=sha256(path))]
        parts.append(Component(name=name, type=ComponentType.FILE, hashes=hashes, bom_ref=f"file:{name}"))
    packages = packages_for(requirements)
    libraries = {name: _library(name, version) for name, (version, _) in packages.items()}
    bom.components.update([*parts, *libraries.values()])
    asked = [libraries[canonicalize_name(Requirement(line).name)] for line in requirements]
    bom.register_dependency(whole, [*parts, *asked])
    for name, (_, needed) in packages.items():
        bom.register_dependency(libraries[name], [libraries[each] for each in needed if each in libraries])
    (folder / "sbom.cdx.json").write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n", encoding="utf-8")


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


def _library(name: str, version: str | None) -> Component:
    licence = licence_of(name)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=PackageURL("pypi", None, name, version),
        bom_ref=f"package:{name}",
        description=None if licence in (NOT_NAMED, NOT_INSTALLED) else f"licence: {licence}",
    )

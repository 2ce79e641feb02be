"""List what a bundle consists of and needs: sbom.cdx.json, in CycloneDX."""

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
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
from enginewright.core.params.all import Params
from enginewright.engine.record import EngineRecord

# The licences of the parts of a bundle, as far as they are known; where they are not, the text says so.

LICENCE = "Apache-2.0"  # of Enginewright itself
NOT_NAMED = "none is named in its distribution: ask its authors"
NOT_INSTALLED = "not known, since it is not installed here: ask where it comes from"
WEIGHTS = {
    "train": "trained by the pipeline that made this bundle; the data's terms may reach them",
    "given": "part of the model: under the terms under which you have it",
    "pretrained": (
        "pretrained weights of torchvision. torchvision says that they may have licences or terms of their own, which "
        "follow from the data they were trained on, and that users must check whether their use is permitted"
    ),
}
DATA = {
    "digits": (
        "scikit-learn's digits, a copy of the test set of the UCI repository's 'Optical Recognition of Handwritten "
        "Digits'; scikit-learn is under BSD-3-Clause, see the repository for the data's own licence"
    )
}


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
    """Return the text of Enginewright's own licence."""
    if found := next((path for path in _licence_files() if path.is_file()), None):
        return found.read_text(encoding="utf-8")
    raise EnginewrightError(
        "this installation of Enginewright lacks its LICENSE, which belongs into a bundle: install it again"
    )


def _licence_files() -> Iterator[Path]:
    """Yield where the text may be: among the installed files, or in the checkout that Python imports."""
    try:
        files = importlib.metadata.files("enginewright") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())) for file in files if file.name == "LICENSE")
    checkout = Path(enginewright.__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        yield checkout / "LICENSE"


def about_model(params: Params) -> str:
    source = params.model.source
    if params.model.is_onnx or params.model.is_factory:
        return f"your own, {source}: under the terms under which you have it"
    return f"{source} of torchvision: {licence_of('torchvision')}"


def terms_of(source: str, known: Mapping[str, str]) -> str:
    """Return the known terms of weights or data, or say that they are the user's own."""
    return known.get(source, f"your own, {source}: under the terms under which you have them")


SBOM = "sbom.cdx.json"


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
    parts = [_file(path, folder) for path in files]
    packages = packages_for(requirements)
    libraries = {name: _library(name, version) for name, (version, _) in packages.items()}
    bom.components.update([*parts, *libraries.values()])
    asked = [libraries[canonicalize_name(Requirement(line).name)] for line in requirements]
    bom.register_dependency(whole, [*parts, *asked])
    for name, (_, needed) in packages.items():
        bom.register_dependency(libraries[name], [libraries[each] for each in needed if each in libraries])
    (folder / SBOM).write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n", encoding="utf-8")


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


def _file(path: Path, folder: Path) -> Component:
    name = path.relative_to(folder).as_posix()
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256(path))]
    return Component(name=name, type=ComponentType.FILE, hashes=hashes, bom_ref=f"file:{name}")

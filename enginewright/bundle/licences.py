"""The licences of the parts of a bundle, as far as they are known; where they are not, the text says so."""

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path

import enginewright
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params

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

"""What is known of the licences of a bundle's parts. What is not known is said to be so."""

import importlib.metadata

from enginery.core.params.all import Params
from enginery.core.runtimes import RUNTIMES

NOT_NAMED = "none is named in its distribution: ask its authors"
NOT_INSTALLED = "not known, since it is not installed here: ask where it comes from"
WEIGHTS = {
    "train": "trained by the pipeline that made this bundle; the data's terms may reach them",
    "given": "the model's own: on the terms that you have it under",
    "pretrained": (
        "torchvision's pretrained ones. torchvision says that they may have licences or terms of their own, derived "
        "from the data they were trained on, and that it is for the user to see whether the use is permitted"
    ),
}
DATA = {
    "digits": (
        "scikit-learn's digits, a copy of the test set of the UCI repository's 'Optical Recognition of Handwritten "
        "Digits'; scikit-learn is under BSD-3-Clause, see the repository for the data's own licence"
    )
}


def licence_of(*distributions: str) -> str:
    """As the first of them that is installed declares it."""
    for name in distributions:
        try:
            return _declared(name) or NOT_NAMED
        except importlib.metadata.PackageNotFoundError:
            continue
    return NOT_INSTALLED


def _declared(distribution: str) -> str:
    found = importlib.metadata.metadata(distribution).json
    return str(found.get("license_expression") or found.get("license") or "").partition("\n")[0]


def about_enginery() -> str:
    found = licence_of("enginery")
    if found == NOT_NAMED:
        return "Enginery names no licence: ask its authors before you pass these on"
    return f"of Enginery: {found}"


def runtime_licence(runtime: str) -> str:
    return licence_of(*RUNTIMES[runtime].distributions)


def about_model(params: Params) -> str:
    source = params.model.source
    if params.model.is_onnx or params.model.is_factory:
        return f"your own, {source}: on the terms that you have it under"
    return f"{source} of torchvision: {licence_of('torchvision')}"


def about_weights(params: Params) -> str:
    source = params.weights.source
    return WEIGHTS.get(source, f"your own, {source}: on the terms that you have them under")


def about_data(params: Params) -> str:
    source = params.samples.source
    return DATA.get(source, f"your own, {source}: on the terms that you have them under")

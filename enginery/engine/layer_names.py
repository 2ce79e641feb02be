"""Short names for an engine's layers."""

import re

from enginery.engine.record import Layer

MOST_CHARACTERS = 48
BETWEEN_NAMES = re.compile(r"\s*(?:,|\+|\|\|)\s*")  # of the nodes in a fused layer
ADDED_ENDING = re.compile(r"/WithoutBiases$|_token_\d+$")  # OpenVINO's, and ONNX Runtime's where channels are last


def node_names(layer: Layer) -> list[str]:
    names = (ADDED_ENDING.sub("", name) for name in BETWEEN_NAMES.split(layer.name))
    return list(dict.fromkeys(name for name in names if name)) or [layer.kind]


def short_name(layer: Layer) -> str:
    """The main node, and how many were fused with it."""
    main, *fused = node_names(layer)
    if len(main) > MOST_CHARACTERS:
        main = f"{main[: MOST_CHARACTERS // 2]}...{main[-MOST_CHARACTERS // 2 :]}"
    return main + (f" and {len(fused)} fused" if fused else "")


def short_kind(layer: Layer) -> str:
    """Without the kernel's name, which TensorRT's layers have."""
    return layer.kind.partition(" ")[0]

"""Short names for an engine's layers."""

import re

from enginewright.engine.record import Layer

MOST_CHARACTERS = 48
BETWEEN_NAMES = re.compile(r"\s*(?:,|\+|\|\|)\s*")  # the name of a fused layer lists its nodes
# By OpenVINO, which may name a product in bytes after its scales alone, and by ONNX Runtime where channels are last.
ADDED_ENDING = re.compile(r"/WithoutBiases$|(?:/WithoutBiases)?/Dequantization\w+$|_token_\d+$")


def node_names(layer: Layer) -> list[str]:
    """Return the names of the graph's nodes that became this layer."""
    names = (ADDED_ENDING.sub("", name) for name in BETWEEN_NAMES.split(layer.name))
    return list(dict.fromkeys(name for name in names if name)) or [layer.kind]


def short_name(layer: Layer) -> str:
    """Return the name of the main node, and how many nodes were fused with it."""
    main, *fused = node_names(layer)
    if len(main) > MOST_CHARACTERS:
        main = f"{main[: MOST_CHARACTERS // 2]}...{main[-MOST_CHARACTERS // 2 :]}"
    return main + (f" and {len(fused)} fused" if fused else "")


def short_kind(layer: Layer) -> str:
    """Return the kind without the name of the kernel, which follows it in TensorRT's layers."""
    return layer.kind.partition(" ")[0]

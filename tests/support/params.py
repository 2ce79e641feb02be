"""The project's own params.yaml, with some parameters changed."""

import copy

from ruamel.yaml import YAML

from support.paths import ROOT

VALID = YAML(typ="safe").load((ROOT / "params.yaml").read_text())
REMOVED = object()


def written(folder, changes):
    """Write the project's own parameters with some changed, by dotted path."""
    content = copy.deepcopy(VALID)
    for place, value in changes.items():
        *sections, name = place.split(".")
        section = content
        for part in sections:
            section = section[part]
        if value is REMOVED:
            del section[name]
        else:
            section[name] = value
    path = folder / "params.yaml"
    YAML(typ="safe").dump(content, path)
    return path

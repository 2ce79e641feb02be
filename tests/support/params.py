"""All parameters with their defaults, some of them changed."""

import copy

from ruamel.yaml import YAML

from enginewright.core.params.all import Params

VALID = Params.model_validate({}).model_dump(mode="json", by_alias=True)
REMOVED = object()


def written(folder, changes):
    """Write all parameters with some changed, by dotted path."""
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

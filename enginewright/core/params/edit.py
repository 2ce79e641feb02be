"""Change params.yaml without losing its comments."""

from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.files import new_file
from enginewright.core.params.all import Params
from enginewright.core.params.section import PARAMS_FILE, load_yaml, yaml_problem

Content = MutableMapping[str, Any]


def edit_params(change: Callable[[Content], None], whose: str, params_file: Path = PARAMS_FILE) -> None:
    """Change params.yaml and keep its comments. If the result is not valid, say so of `whose` change it is."""
    params = read_content(params_file)
    change(params)
    with new_file(params_file.resolve()) as temporary:  # which may be a link to what several projects share
        _yaml().dump(params, temporary)
        try:
            Params.read(temporary)
        except EnginewrightError as error:
            raise EnginewrightError(str(error).replace(str(temporary), whose)) from None


def _yaml() -> YAML:
    yaml = YAML()
    yaml.width, yaml.preserve_quotes = 120, True
    yaml.representer.add_representer(type(None), _write_null)
    return yaml


def _write_null(representer: RoundTripRepresenter, _: None) -> ScalarNode:
    """Write null as params.yaml does. By itself, ruamel would write nothing at all."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def read_content(path: Path) -> Content:
    try:
        text = path.read_text(encoding="utf-8")
        load_yaml(text)  # which refuses aliases that repeat each other without end
        content = _yaml().load(text)
    except FileNotFoundError:
        raise EnginewrightError(f"{path} does not exist") from None
    except (YAMLError, *UNREADABLE) as error:
        raise EnginewrightError(f"{path} is not valid YAML: {yaml_problem(error)}") from None
    if not isinstance(content, MutableMapping):
        raise EnginewrightError(f"{path} holds no parameters")
    return content


def overlay(params: Content, changes: Content) -> None:
    for key, value in changes.items():
        if isinstance(value, MutableMapping) and isinstance(params.get(key), MutableMapping):
            overlay(params[key], value)
        elif isinstance(value, list) and isinstance(params.get(key), list):
            params[key][:] = value  # in the layout of the list: `dvc exp run -S` leaves a line for each item
        else:
            params[key] = value

"""Write reference/parameters.md, all parameters of params.yaml, from the code: `python docs/parameters.py`."""

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from enginewright.core.params.all import Params, all_defaults
from enginewright.core.params.build import Range
from enginewright.core.params.section import Section

DOCUMENT = Path(__file__).parent / "reference/parameters.md"
START = """\
# All parameters

<!-- Made by docs/parameters.py from enginewright/core/params: change it there. -->

Each has a default, so that any part of a params.yaml is a valid one: a project sets what it needs. Only what dvc.yaml
reads must stand in the file: the names under `precisions` and their `from`, and the names under `search`. `make repro`
adds those that are missing. Of `dvc exp run`, `-S NAME=VALUE` sets what the file has, and `-S +NAME=VALUE` another one.
"""
PRECISIONS = """\
## precisions

{help}. A precision that is only named, as in `int8: {{from: searched}}`, has what the second table says.

| parameter of each precision | what it is |
|---|---|
"""


def document() -> str:
    parts, single = [START], list[str]()
    for name, field in parameters_of(Params):
        if name == "precisions":
            parts.append(precisions(field))
        elif kind := section_of(field):
            by_precision = get_origin(field.annotation) is dict
            rows = "".join(table(kind, f"{name}.P." if by_precision else f"{name}.", field.default))
            parts.append(f"## {name}\n\n{sentence(field)}.\n\n{HEAD}{rows}")
        else:
            single.append(row(name, field, field.default))
    return "\n".join([parts[0], f"{HEAD}{''.join(single)}", *parts[1:]])


def parameters_of(kind: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield each parameter of a section, described by the text that stands below it in the code."""
    texts = {}
    for each in kind.__mro__[: kind.__mro__.index(Section)]:  # one section may be a kind of another
        (body,) = ast.parse(inspect.getsource(each)).body
        for node, below in pairwise(body.body if isinstance(body, ast.ClassDef) else ()):
            match node, below:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    texts[name] = " ".join(text.split())
    for name, field in kind.model_fields.items():
        field.description = texts[name]
        yield name, field


HEAD = "| parameter | default | what it is |\n|---|---|---|\n"


def table(kind: type[Section], place: str, section: Any = None) -> Iterator[str]:
    """Yield a row for each parameter. `section` has the defaults, if it is one by default."""
    for name, field in parameters_of(kind):
        inner, key = section_of(field), f"{place}{field.alias or name}"
        default = getattr(section, name) if isinstance(section, Section) else field.default
        if not inner or not isinstance(default, Section):
            yield row(key, field, default)
        if inner and (isinstance(default, Section) or inner is not Range):  # one is explained with the batch
            yield from table(inner, f"{key}.NAME." if get_origin(field.annotation) is dict else f"{key}.", default)


def row(place: str, field: FieldInfo, default: Any) -> str:
    shown = "" if default is PydanticUndefined else f"`{written(default)}`"
    choices = ", ".join(map(str, values_of(field.annotation)))
    what = [field.description, choices and f"one of {choices}"]
    return f"| `{place}` | {shown} | {'; '.join(filter(None, what))} |\n".replace("null|", "null\\|")


def precisions(field: FieldInfo) -> str:
    kind = section_of(field)
    assert kind
    made = {name: dict(flattened(each)) for name, each in all_defaults()["precisions"].items()}
    parts = (line.split(" | ") for line in table(kind, ""))
    what = "".join(f"{name} | {text}" for name, _, text in parts)
    names = next(iter(made.values()))
    rows = "".join(
        f"| `{name}` | {' | '.join(f'`{written(each[name])}`' for each in made.values())} |\n" for name in names
    )
    head = f"| default | {' | '.join(made)} |\n|{'---|' * (len(made) + 1)}\n"
    return f"{PRECISIONS.format(help=sentence(field))}{what}\n{head}{rows}"


def flattened(values: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section that a parameter is, or that it holds by name."""
    waiting = [field.annotation]
    while waiting:
        kind: Any = waiting.pop()
        if isinstance(kind, type) and not get_origin(kind) and issubclass(kind, Section):
            return kind
        waiting += get_args(kind)
    return None


def values_of(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from values_of(each)


def written(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1]:  # a height and a width
        value = value[0]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value)


def sentence(field: FieldInfo) -> str:
    text = field.description or ""
    return text[0].upper() + text[1:]


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")

"""The base of every section of params.yaml, and how the file is read: a sentence says what is wrong."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.text import in_one_line, suggestion

SECTION = "input should be a section of parameters"
LARGEST = 1_000_000  # a file of parameters or classes
IN_YAML = {"model_type": SECTION, "dict_type": SECTION, "tuple_type": "input should be a list"}


def read_yaml(file: Path) -> Any:
    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EnginewrightError(f"{file} is not in {Path.cwd()}: run from the root of the project") from None
    except (YAMLError, *UNREADABLE) as error:
        raise EnginewrightError(f"{file} is not valid YAML: {yaml_problem(error)}") from None


@lru_cache(maxsize=4)  # a stage reads several sections of one file
def _parsed(text: str) -> Any:
    try:
        return load_yaml(text)
    except (YAMLError, *UNREADABLE):
        return load_yaml(text, pure=True)  # slower than the parser in C, whose errors omit names


def load_yaml(text: str | bytes, pure: bool = False) -> Any:
    """Return what a text in YAML says. A few lines of aliases, each repeating another ten times, would fill memory."""
    yaml = YAML(typ="safe", pure=pure)
    whole = yaml.compose(text)
    waiting, size = [whole] if whole else [], 0
    while waiting:
        value = waiting.pop().value  # a text, parts, or pairs of a key and a part
        size += 1 + len(value)
        if size > LARGEST:
            raise ValueError(f"with its aliases written out it has more than {LARGEST:,} characters")
        if not isinstance(value, str):
            waiting += [part for each in value for part in (each if isinstance(each, tuple) else (each,))]
    return yaml.constructor.construct_document(whole) if whole else None


def yaml_problem(error: Exception) -> str:
    """Say what is wrong and where, without the excerpts and advice that the parser adds."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return in_one_line(error)


def explain(error: ValidationError, section: type[BaseModel], place: str) -> str:
    """Turn pydantic's errors into sentences that name each entry by its place in params.yaml."""
    return "; ".join(_sentence(each, section, place) for each in _causes(error.errors()))


def _causes(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Drop errors that follow from another: a wrong entry empties its list, an unknown precision lacks all its keys."""

    def follows(error: ErrorDetails) -> bool:
        place = _place(error)
        others = [(_place(each), each["type"]) for each in errors if _place(each) != place]
        if error["type"] == "too_short":
            return any(other[: len(place)] == place for other, _ in others)
        return any(place[: len(other)] == other and kind != "too_short" for other, kind in others)

    return [error for error in errors if not follows(error)]


def _place(error: ErrorDetails) -> list[str]:
    return [str(part) for part in error["loc"] if part != "[key]"]


def _sentence(error: ErrorDetails, section: type[BaseModel], start: str) -> str:
    place = _place(error)
    name = ".".join([start, *place] if start else place)
    if error["type"] == "extra_forbidden":
        return f"{name} is not a parameter{suggestion(place[-1], _names_in(section, place[:-1]))}"
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] == "too_short":
        return f"{name} is empty"
    if error["type"] == "value_error":
        return f"{name}: {error['ctx']['error']}" if place else str(error["ctx"]["error"])
    message = IN_YAML.get(error["type"]) or error["msg"][0].lower() + error["msg"][1:].partition(", got ")[0]
    return f"{name or 'the file'}: {message}, got {error['input']!r}"


def _names_in(section: Any, place: list[str]) -> list[str]:
    """Return the parameters that may stand in the section at `place`."""
    for part in place:
        annotation = get_args(section)[1] if get_origin(section) is dict else section.model_fields[part].annotation
        kinds = (annotation, *get_args(annotation))  # it may be `Section | None`
        section = next(kind for kind in kinds if hasattr(kind, "model_fields") or get_origin(kind) is dict)
    return [field.alias or name for name, field in section.model_fields.items()]


PARAMS_FILE = Path("params.yaml")
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen, validated part of params.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

"""Stand-ins for NVIDIA's classes and functions, which refuse whatever the real ones refuse."""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import ClassVar

DOCUMENTED = re.compile(r"^(?:\d+\. )?(\w*)\((.*)\) -> (.*)$", re.MULTILINE)
PARAMETER = re.compile(r"\s*(\w+): (.*?)(?: = (.*))?")
OTHER_NAMES = {"IParserError": "ParserError"}  # a C++ name in the documentation of the bindings
PLAIN = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: hasattr(value, "__int__") and not isinstance(value, float | str),
    "tuple": lambda value: isinstance(value, tuple),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: True,
    "None": lambda value: value is None,
    "buffer": lambda value: _is_buffer(value),
}
CAPSULES = ("capsule", "typing_extensions.CapsuleType")
PLAIN |= {"typing.SupportsInt": PLAIN["int"], "typing_extensions.Buffer": PLAIN["buffer"]}


class Simulated:
    """An object that C++ would make. `real` is the class of NVIDIA's bindings that it stands for.

    A class that defines something that the real one lacks cannot be made. Calls and assignments are held against the
    signatures that pybind11 wrote into the documentation of the real class. Names with `_` belong to the simulation.
    """

    _classes: ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, real: type) -> None:
        cls._real = real
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and not (name == "__init__" and inspect.isfunction(member)):
                continue
            counterpart = inspect.getattr_static(real, name, None)
            if counterpart is None or isinstance(counterpart, property) == inspect.isfunction(member):
                raise AttributeError(f"the real {real.__name__} has no such {name}")
            if inspect.isfunction(member):
                setattr(cls, name, _checked(member, getattr(real, name)))
        Simulated._classes[real.__name__] = cls

    def __init__(self, *arguments: object) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined!")

    @classmethod
    def _new(cls, **state: object):
        new = cls.__new__(cls)
        vars(new).update({f"_{name}": value for name, value in state.items()})
        return new

    def __getattr__(self, name: str):
        if hasattr(self._real, name):
            raise AttributeError(
                f"the simulation lacks {self._real.__name__}.{name}: add it to {type(self).__module__}"
            )
        raise AttributeError(f"{self._real.__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            setter = getattr(inspect.getattr_static(self._real, name, None), "fset", None)
            if setter is None:
                raise AttributeError(f"attribute {name!r} of {self._real.__name__!r} cannot be set")
            _accepted(signatures(setter), (self, value), {}, setter)
        object.__setattr__(self, name, value)


def same_signature(module) -> Callable[[Callable], Callable]:
    """Refuse to stand in for a function that the module lacks, or has with other parameters."""

    def check(function: Callable) -> Callable:
        theirs = list(inspect.signature(getattr(module, function.__name__)).parameters)
        if theirs != list(inspect.signature(function).parameters):
            raise TypeError(f"the real {function.__name__} takes ({', '.join(theirs)})")
        return function

    return check


def signatures(function: Callable) -> list[inspect.Signature]:
    """Return all overloads, as pybind11 documents them."""
    return [
        inspect.Signature([_parameter(text) for text in _split(parameters)], return_annotation=returned)
        for _, parameters, returned in DOCUMENTED.findall(function.__doc__ or "")
    ]


def _parameter(text: str) -> inspect.Parameter:
    name, kind, default = PARAMETER.fullmatch(text).groups()
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        annotation=kind,
        default=inspect.Parameter.empty if default is None else default,
    )


def _split(parameters: str) -> list[str]:
    """Split at the commas outside brackets."""
    depth, parts = 0, [""]
    for letter in parameters:
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _checked(simulated: Callable, real: Callable) -> Callable:
    overloads = signatures(real)

    @functools.wraps(simulated)
    def call(*arguments, **named):
        arguments, returned = _accepted(overloads, arguments, named, real)
        result = simulated(*arguments)
        null = result is None and returned not in PLAIN  # C++ returns a null pointer there
        if not (null or _fits(returned, result)):
            raise TypeError(f"the simulation of {real.__name__} gives {result!r}, and {returned} is right")
        return result

    return call


def _accepted(overloads, arguments, named, real: Callable) -> tuple[tuple, str]:
    for overload in overloads:
        try:
            bound = overload.bind(*arguments, **named)
        except TypeError:
            continue
        if all(_fits(overload.parameters[name].annotation, value) for name, value in bound.arguments.items()):
            return bound.args, overload.return_annotation
    supported = "\n".join(f"    {number}. {overload}" for number, overload in enumerate(overloads, 1))
    invoked = ", ".join([*map(repr, arguments), *(f"{name}={value!r}" for name, value in named.items())])
    raise TypeError(
        f"{getattr(real, '__name__', 'attribute')}(): incompatible function arguments. The following argument types "
        f"are supported:\n{supported}\n\nInvoked with: {invoked}"
    )


def _fits(kind: str, value: object) -> bool:
    if kind in PLAIN:
        return PLAIN[kind](value)
    if kind in CAPSULES:
        return type(value).__name__ == "PyCapsule"
    if several := re.fullmatch(r"(?:[Ll]ist|collections\.abc\.Sequence)\[(.*)\]", kind):
        return isinstance(value, list) and all(_fits(several[1], item) for item in value)
    name = re.sub(r".*(::|tensorrt\.)", "", kind)
    name = OTHER_NAMES.get(name, name)
    module = sys.modules["tensorrt_bindings"]
    if name == "Dims" and isinstance(value, tuple | list):
        return len(value) <= module.Dims.MAX_DIMS and all(PLAIN["int"](size) for size in value)
    return isinstance(value, Simulated._classes.get(name) or attrgetter(name)(module))


def _is_buffer(value: object) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True

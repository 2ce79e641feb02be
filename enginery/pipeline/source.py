"""What a file of Python code imports, and a digest of what it does."""

import ast
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from enginery.core.files import new_file

# Parsing all files takes half a second, and nearly always none has changed: what was found is kept by their content.
KEPT = Path(__file__).parents[1] / "__pycache__" / "sources.json"
FORM = 1  # of what is kept


class Parsed(NamedTuple):
    digest: str
    imports: list[str]


class Sources:
    """The project's files, each parsed once for each content."""

    def __enter__(self) -> Self:
        self._found: dict[str, Parsed] = {}
        self._by_file: dict[Path, Parsed] = {}
        try:
            kept = json.loads(KEPT.read_text())
            self._kept = {key: Parsed(*values) for key, values in kept["files"].items() if kept["form"] == FORM}
        except (OSError, ValueError, KeyError, TypeError):
            self._kept = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._found != self._kept:
            with suppress(OSError), new_file(KEPT) as temporary:  # where nothing can be written, it costs time alone
                temporary.write_text(json.dumps({"form": FORM, "files": self._found}))

    def parsed(self, file: Path) -> Parsed:
        if file not in self._by_file:
            content = file.read_bytes()
            key = hashlib.sha256(content).hexdigest()
            self._found[key] = self._by_file[file] = self._kept.get(key) or parse(content)
        return self._by_file[file]


def parse(content: bytes) -> Parsed:
    tree = ast.parse(content)
    return Parsed(hashlib.sha256(_meaning(tree).encode()).hexdigest(), sorted(set(_imports(tree))))


def _meaning(tree: ast.Module) -> str:
    """Write the syntax tree without positions, comments and docstrings, alike in each version of Python."""
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _is_text_alone(each)]  # type: ignore[attr-defined]
    return ast.dump(tree).replace(", type_params=[]", "")  # a field that Python 3.12 added


def _is_text_alone(node: ast.AST) -> bool:
    """Tell whether a statement is a string and nothing else: a docstring, or a comment written as one."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in _running(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through a file without what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"):
            yield child
            yield from _running(child)

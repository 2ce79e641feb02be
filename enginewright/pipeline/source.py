"""Read what a file of Python code imports, and a digest of what it does."""

import ast
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self, TypeGuard

from enginewright.core.files import new_file

FORMAT = 1  # of the kept file: another format is not read


class Source(NamedTuple):
    digest: str
    imports: list[str]


class KeptSources:
    """The sources of files, kept in a file by their content.

    Parsing all files of the project takes half a second, and nearly always none has changed.
    """

    def __init__(self, kept_in: Path) -> None:
        self._kept_in = kept_in
        self._of_file: dict[Path, Source] = {}
        self._used: dict[str, Source] = {}

    def __enter__(self) -> Self:
        try:
            kept = json.loads(self._kept_in.read_text(encoding="utf-8"))
            self._kept = {key: Source(*values) for key, values in kept["files"].items() if kept["format"] == FORMAT}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._kept = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._used != self._kept:
            with suppress(OSError), new_file(self._kept_in) as temporary:  # a read-only folder only costs time
                temporary.write_text(json.dumps({"format": FORMAT, "files": self._used}), encoding="utf-8")

    def read(self, file: Path) -> Source:
        if file not in self._of_file:
            content = file.read_bytes()
            key = hashlib.sha256(content).hexdigest()
            self._of_file[file] = self._used[key] = self._kept.get(key) or parse(content)
        return self._of_file[file]


def parse(content: bytes) -> Source:
    tree = ast.parse(content)
    imports = sorted(set(imports_of(tree)))
    return Source(hashlib.sha256(_meaning(tree).encode()).hexdigest(), imports)


def _meaning(tree: ast.Module) -> str:
    """Write the syntax tree without positions, comments and docstrings, alike in each version of Python."""
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _has_no_effect(each)]  # type: ignore[attr-defined]
    return ast.dump(tree).replace(", type_params=[]", "")  # a field that Python 3.12 added


def _has_no_effect(node: ast.AST) -> bool:
    """Tell whether a statement is only a string, as docstrings are, or only read by type checkers."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or (_is_for_types(node) and not node.orelse)


def _is_for_types(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of each module, or of each member of a module, that is imported at any place of a file."""
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through a file, past what only type checkers read."""
    for child in node.orelse if _is_for_types(node) else ast.iter_child_nodes(node):
        yield child
        yield from _executed(child)

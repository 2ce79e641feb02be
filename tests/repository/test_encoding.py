"""Text files are UTF-8, whatever the user's locale says."""

import ast

from support.paths import ROOT

WITHOUT_ENCODING = {"read_text": 0, "write_text": 1}  # how many arguments stand before it


def test_text_files_are_read_and_written_as_utf8():
    left = []
    for path in [*(ROOT / "enginewright").rglob("*.py"), *(ROOT / "stages").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
            if name in WITHOUT_ENCODING and len(node.args) == WITHOUT_ENCODING[name]:
                left += [f"{path}:{node.lineno}"] * ("encoding" not in {each.arg for each in node.keywords})
    assert left == []

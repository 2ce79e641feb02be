"""Enginewright is on no index, where anybody could take its name: nothing may tell to install it by its name alone."""

import importlib.metadata
import json
import re
import subprocess

import pytest
from support.paths import ROOT

from enginewright.cli.layout import NIGHTLY, Place, bring_wheel, renewed_files
from enginewright.core import installing
from enginewright.core.installing import elsewhere, how_to_install, requirement

# Of pip, uv and the like, and in files of requirements; an address follows an extra.
BARE = re.compile(
    r"""(?:pip|uv|pipx)\b[^\n`]*\binstall\b[^\n`]*?[ "']enginewright(?:\[[^]\n]*\])?(?!\[|[\w./-]|\ @\ )"""
    r"""|enginewright(?:\[[^]\n]*\])?[=<>~!]=""",
    re.VERBOSE,
)
CONTENTS = ("enginewright", "stages", "docs", "README.md", "CONTRIBUTING.md", "Makefile", ".github", "containers",
            "notebooks", "recipes", "tools")  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "pip install enginewright",
        "pip install -U 'enginewright[pipeline]'",
        'python -m pip install --quiet "enginewright[pipeline]==0.3.0"',
        "pip install 'enginewright[timm]'\")",
        "uv pip install enginewright[sign], or",
        "enginewright[pipeline]>=0.3",
    ],
)
def test_a_bare_name_is_found(text):
    assert BARE.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install -e '.[pipeline]'",
        "pip install 'enginewright[pipeline] @ git+ADDRESS'",
        "pip install openvino, then `enginewright doctor`",
        "pip install -e '/home/me/enginewright[pipeline]'",
    ],
)
def test_an_address_is_none(text):
    assert not BARE.search(text)


def test_nothing_tells_to_install_it_by_its_name_alone():
    files = subprocess.run(["git", "ls-files", *CONTENTS], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    texts = {name: (ROOT / name) for name in files if name and not name.startswith("docs/evidence/results/")}
    found = []
    for name, path in texts.items():
        if path.is_file() and path.suffix not in (".png", ".onnx", ".pt", ".gif", ".jpg", ".webp"):
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [f"{name}: {match[0]}" for match in BARE.finditer(text)]
    assert not found


class Noted:
    def __init__(self, noted):
        self._noted = noted

    def read_text(self, name):
        assert name == "direct_url.json"
        return self._noted and json.dumps(self._noted)


GIT = {"url": "https://example.org/e.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}}


@pytest.mark.parametrize(
    ("noted", "needed", "command", "on_others"),
    [
        (GIT, "git+https://example.org/e.git@0a1b", None, "git+https://example.org/e.git@0a1b"),
        (GIT | {"subdirectory": "a"}, "git+https://example.org/e.git@0a1b#subdirectory=a", None, None),
        ({"url": "https://example.org/e.whl", "archive_info": {}}, "https://example.org/e.whl", None, None),
        ({"url": "file:///tmp/e.whl", "archive_info": {}}, "file:///tmp/e.whl", None, "git+ADDRESS"),
        ({"url": "file:///a%20b", "dir_info": {}}, "file:///a%20b", None, "git+ADDRESS"),
        (
            {"url": "file:///a%20b", "dir_info": {"editable": True}},
            "file:///a%20b",
            "pip install -e '/a b[timm]'",
            "git+ADDRESS",
        ),
    ],
)
def test_the_requirement_is_where_this_one_is_from(monkeypatch, noted, needed, command, on_others):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Noted(noted))
    assert requirement("timm") == f"enginewright[timm] @ {needed}"
    assert how_to_install("timm") == (command or f"pip install 'enginewright[timm] @ {needed}'")
    assert elsewhere("timm") == f"enginewright[timm] @ {on_others or needed}"


def test_a_wheel_goes_into_the_project_whose_workflow_installs_it(monkeypatch, tmp_path):
    wheel, kept = tmp_path / "enginewright-9-py3-none-any.whl", tmp_path / "project/.enginewright"
    wheel.write_bytes(b"9")
    kept.mkdir(parents=True)
    (kept / "enginewright-8-py3-none-any.whl").touch()
    project = Place(kept.parent, kept.parent, kept.parent)
    for each in (wheel, kept / wheel.name):  # then the one that is there already
        noted = {"url": each.as_uri(), "archive_info": {}}
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name, noted=noted: Noted(noted))
        bring_wheel(project)
        assert [path.read_bytes() for path in kept.iterdir()] == [b"9"]
        text = renewed_files(project)[NIGHTLY].text
        assert 'pip install --quiet "./.enginewright/enginewright-9-py3-none-any.whl[pipeline]"' in text
        assert 'pip install --quiet "./.enginewright/enginewright-9-py3-none-any.whl[pipeline,tensorrt]"' in text


def test_without_a_note_it_is_the_clone_or_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Noted(None))
    assert how_to_install("timm") == f"pip install -e '{ROOT}[timm]'"
    monkeypatch.setattr(installing, "ROOT", tmp_path)
    assert how_to_install("timm") == "pip install 'enginewright[timm] @ git+ADDRESS'"

import ast
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.graph.onnx_file import load_graph
from enginewright.model.user_code import (
    _is_installed,
    describe_user_error,
    files_named_in,
    fingerprint,
    warn_of_unwatched_code,
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the folder that the user works in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_fingerprint_of_a_module_is_that_of_its_file(project):
    (project / "users_file.py").write_text("def build(): ...\n")
    assert fingerprint("users_file:build") == {"users_file.py": sha256(project / "users_file.py")}


@pytest.mark.parametrize("initialized", [True, False], ids=["package", "namespace"])
def test_the_fingerprint_of_a_package_covers_all_its_files(project, initialized):
    """The factory's module may import any of them."""
    names = ["users_package/deeper/nets.py", "users_package/layers.py"]
    names += ["users_package/__init__.py"] if initialized else []
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"# {name}\n")
    (project / "users_package" / "notes.txt").write_text("no code")
    found = fingerprint("users_package.deeper.nets:build")
    assert found == {name: sha256(project / name) for name in names}
    assert list(found) == sorted(names)


def test_the_users_other_modules_are_covered_if_they_are_imported(project, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.syspath_prepend(elsewhere)
    files = {
        "users_net.py": "import json, users_blocks as blocks\nfrom numpy import linalg\n",
        "users_blocks.py": "def build():\n    from users_layers.deeper import norm\n",  # when it is called
        "users_layers/__init__.py": "from . import deeper\n",
        "users_layers/deeper/norm.py": "import users_net\ntry:\n    import users_missing\nexcept ImportError: ...\n",
        "users_layers/notes.txt": "import users_unused",
        "users_unused.py": "",
    }
    for name, code in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(code)
    (elsewhere / "users_shared.py").write_text("def broken(:\n    import users_unused\n")
    with (project / "users_blocks.py").open("a") as code:
        code.write("import users_shared\n")
    found = fingerprint("users_net:build")
    assert found == {
        **{name: sha256(project / name) for name in files if name.endswith(".py") and "unused" not in name},
        "users_shared.py": sha256(elsewhere / "users_shared.py"),
    }
    assert list(found) == sorted(found)


def test_imports_of_an_installed_package_are_not_followed():
    assert {name.partition("/")[0] for name in fingerprint("onnx_ir:Model")} == {"onnx_ir"}


@pytest.mark.parametrize(
    ("name", "is_installed"),
    [("site-packages", True), ("dist-packages", True), ("site-packages-of-mine", False), ("src", False)],
)
def test_modules_of_another_environment_on_the_path_are_installed(tmp_path, monkeypatch, name, is_installed):
    """A .pth file may add the packages of another environment to sys.path."""
    folder = tmp_path / "python3.11" / name
    (folder / "users_package").mkdir(parents=True)
    file = folder / "users_package/nets.py"
    assert not _is_installed(file)
    monkeypatch.syspath_prepend(folder)
    assert _is_installed(file) == is_installed


def test_modules_in_a_folder_that_looks_like_pythons_own_are_the_users(tmp_path, monkeypatch):
    folder = tmp_path / "python3.11/site-packages-of-mine"
    folder.mkdir(parents=True)
    (folder / "users_housed.py").write_text("import users_helping\ndef build():\n    raise ValueError('boom')\n")
    (folder / "users_helping.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    assert list(fingerprint("users_housed:build")) == ["users_helping.py", "users_housed.py"]
    import users_housed

    assert str(folder / "users_housed.py") in describe_user_error(raised_by(users_housed.build))


def test_python_and_its_packages_are_installed():
    assert all(_is_installed(Path(module.__file__)) for module in (np, ast, pytest))


VENDORED = """
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "third"))
import users_beside
from users_vendored import Net
"""


def test_a_folder_that_the_code_puts_on_the_path_itself_gives_a_warning(project, monkeypatch, capsys):
    monkeypatch.setattr("sys.path", list(sys.path))
    (project / "third").mkdir()
    (project / "users_path.py").write_text(VENDORED)
    (project / "users_beside.py").write_text("")
    (project / "third/users_vendored.py").write_text("import users_deeper\nNet = dict\n")
    (project / "third/users_deeper.py").write_text("")
    with warn_of_unwatched_code("users_path:Net"):
        importlib.import_module("users_path")
    assert capsys.readouterr().err == (
        f"MIND: users_path:Net imports {project / 'third/users_deeper.py'} and 1 more, where `dvc repro` sees no "
        "change: put the folder on PYTHONPATH, or the files beside params.yaml, and import them by name\n"
    )


def test_code_that_is_watched_gives_no_warning(project, capsys):
    (project / "users_watched.py").write_text("import users_seen, colorsys\n")
    (project / "users_seen.py").write_text("")
    with warn_of_unwatched_code("users_watched:build"):
        importlib.import_module("users_watched")
    assert capsys.readouterr() == ("", "")


def test_files_that_arguments_name_are_found_at_any_depth(project, tmp_path_factory):
    (project / "configs").mkdir()
    for name in ("net.json", "parts.json"):
        (project / "configs" / name).write_text("{}")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "other.json"
    elsewhere.write_text("{}")
    arguments = {
        "config": "configs/net.json",
        "parts": [{"file": str(project / "configs/parts.json")}, "configs/missing.json", 3, None, True, 0.5],
        "other": str(elsewhere),  # of which a clone has nothing
        "texts": ["", "relu", "configs", "x" * 5000, "a\0b"],
    }
    known = files_named_in(arguments)
    assert known == {
        "configs/net.json": sha256(project / "configs/net.json"),
        str(project / "configs/parts.json"): sha256(project / "configs/parts.json"),
    }
    assert files_named_in({}) == {}
    (project / "configs/net.json").write_text('{"width": 8}')
    assert files_named_in(arguments) != known


def test_other_code_has_another_fingerprint(project):
    file = project / "users_changing.py"
    file.write_text("depth = 1\n")
    before = fingerprint("users_changing:build")
    file.write_text("depth = 2\n")
    assert fingerprint("users_changing:build").keys() == before.keys()
    assert fingerprint("users_changing:build") != before


@pytest.mark.parametrize("source", ["users_nothing:build", "users_nothing.nets:build"])
def test_a_module_that_does_not_exist_is_named_with_the_folder_that_was_searched(project, source):
    with pytest.raises(EnginewrightError) as caught:
        fingerprint(source)
    assert str(caught.value) == (
        f"model.source: there is no module 'users_nothing' in {Path.cwd()} nor among the installed packages"
    )


def test_finding_the_code_does_not_run_it(project):
    (project / "users_loud.py").write_text("raise SystemExit('imported')\n")
    assert fingerprint("users_loud:build")
    assert "users_loud" not in sys.modules


def raised_by(call, *arguments):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(*arguments)
    return caught.value


def test_the_last_three_lines_of_the_users_code_are_reported():
    def fail(depth):
        if depth == 0:
            raise ValueError("\nno depth left:\n\n\ttake a smaller one,\n  or none\nand more that nobody reads")
        fail(depth - 1)

    first, *places = describe_user_error(raised_by(fail, 5)).split("\n  ")
    assert first == "ValueError: no depth left: take a smaller one, or none"
    assert len(places) == 3
    assert [place.rpartition(": ")[2] for place in places] == [
        "fail(depth - 1)",
        "fail(depth - 1)",
        r'raise ValueError("\nno depth left:\n\n\ttake a smaller one,\n  or none\nand more that nobody reads")',
    ]
    assert all(place.startswith(f"{__file__}, line ") and ", in fail: " in place for place in places)


@pytest.mark.parametrize("told", ["from", "while handling"])
def test_the_first_cause_of_an_error_is_reported_in_its_line(told):
    def fail():
        try:
            Path("/nowhere/at/all").read_bytes()
        except OSError as error:
            if told == "from":
                raise RuntimeError("could not build") from error
            raise RuntimeError("could not build")  # noqa: B904

    first, *places = describe_user_error(raised_by(fail)).split("\n  ")
    assert first == (
        "RuntimeError: could not build, because of FileNotFoundError: "
        "[Errno 2] No such file or directory: '/nowhere/at/all'"
    )
    assert [place.partition(", in ")[2].partition(":")[0] for place in places] == ["raised_by", "fail"]


def test_a_cause_that_is_suppressed_is_not_reported():
    def fail():
        try:
            Path("/nowhere/at/all").read_bytes()
        except OSError:
            raise RuntimeError("could not build") from None

    assert describe_user_error(raised_by(fail)).startswith("RuntimeError: could not build\n")


def test_a_very_long_message_is_cut():
    told = describe_user_error(ValueError("x" * 100_000))
    assert len(told) < 500
    assert told.endswith("x…")


@pytest.mark.parametrize(
    ("call", "argument", "message"),
    [
        (np.linalg.inv, np.zeros((2, 2)), "LinAlgError: Singular matrix"),
        (load_graph, Path("x.onnx"), "EnginewrightError: x.onnx is missing: run `dvc repro` to make it"),
    ],
)
def test_lines_in_libraries_and_in_enginewright_are_left_out(call, argument, message):
    first, place = describe_user_error(raised_by(call, argument)).split("\n  ")
    assert first == message
    assert place.startswith(__file__)


def test_an_error_without_a_message_is_reported_by_its_type():
    def fail():
        raise NotImplementedError

    assert describe_user_error(raised_by(fail)).startswith("NotImplementedError\n")


def test_a_syntax_error_is_reported_with_its_line():
    assert describe_user_error(raised_by(compile, "x = 1\ny = (", "/home/user/nets.py", "exec")) == (
        "SyntaxError: '(' was never closed (/home/user/nets.py, line 2)"
    )

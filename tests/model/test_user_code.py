import ast
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from enginery.core.errors import EngineryError
from enginery.core.files import sha256
from enginery.model.user_code import _is_installed, fingerprint, named_files, tell_unwatched, users_part


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The folder that the user works in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_is_known_by_its_file(project):
    (project / "users_file.py").write_text("def build(): ...\n")
    assert fingerprint("users_file:build") == {"users_file.py": sha256(project / "users_file.py")}


@pytest.mark.parametrize("initialized", [True, False], ids=["package", "namespace"])
def test_a_package_is_known_by_all_its_files(project, initialized):
    """The factory's module imports others of them."""
    names = ["users_package/deeper/nets.py", "users_package/layers.py"]
    names += ["users_package/__init__.py"] if initialized else []
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"# {name}\n")
    (project / "users_package" / "notes.txt").write_text("no code")
    found = fingerprint("users_package.deeper.nets:build")
    assert found == {name: sha256(project / name) for name in names}
    assert list(found) == sorted(names)


def test_what_the_user_wrote_besides_is_known_as_far_as_it_is_imported(project, tmp_path_factory, monkeypatch):
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


def test_of_an_installed_package_nothing_else_is_followed():
    """What it imports is others' work as well."""
    assert {name.partition("/")[0] for name in fingerprint("onnx_ir:Model")} == {"onnx_ir"}


def test_what_lies_in_a_folder_that_looks_like_pythons_own_is_the_users(tmp_path, monkeypatch):
    folder = tmp_path / "python3.11/site-packages-of-mine"
    folder.mkdir(parents=True)
    (folder / "users_housed.py").write_text("import users_helping\ndef build():\n    raise ValueError('boom')\n")
    (folder / "users_helping.py").write_text("")
    monkeypatch.syspath_prepend(folder)
    assert list(fingerprint("users_housed:build")) == ["users_helping.py", "users_housed.py"]
    import users_housed

    assert str(folder / "users_housed.py") in users_part(raised_by(users_housed.build))


def test_python_and_its_packages_are_others_work():
    assert all(_is_installed(Path(module.__file__)) for module in (np, ast, pytest))


VENDORED = """
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "third"))
import users_beside
from users_vendored import Net
"""


def test_what_the_code_puts_on_the_path_itself_is_told(project, monkeypatch, capsys):
    monkeypatch.setattr("sys.path", list(sys.path))
    (project / "third").mkdir()
    (project / "users_path.py").write_text(VENDORED)
    (project / "users_beside.py").write_text("")
    (project / "third/users_vendored.py").write_text("import users_deeper\nNet = dict\n")
    (project / "third/users_deeper.py").write_text("")
    with tell_unwatched("users_path:Net"):
        importlib.import_module("users_path")
    assert capsys.readouterr().err == (
        f"MIND: users_path:Net imports {project / 'third/users_deeper.py'} and 1 more, where `dvc repro` sees no "
        "change: put the folder on PYTHONPATH, or the files beside params.yaml, and import them by name\n"
    )


def test_of_what_is_watched_nothing_is_told(project, capsys):
    (project / "users_watched.py").write_text("import users_seen, colorsys\n")
    (project / "users_seen.py").write_text("")
    with tell_unwatched("users_watched:build"):
        importlib.import_module("users_watched")
    assert capsys.readouterr() == ("", "")


def test_the_files_that_arguments_name_are_known_at_any_depth(project, tmp_path_factory):
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
    known = named_files(arguments)
    assert known == {
        "configs/net.json": sha256(project / "configs/net.json"),
        str(project / "configs/parts.json"): sha256(project / "configs/parts.json"),
    }
    assert named_files({}) == {}
    (project / "configs/net.json").write_text('{"width": 8}')
    assert named_files(arguments) != known


def test_other_code_has_another_fingerprint(project):
    file = project / "users_changing.py"
    file.write_text("depth = 1\n")
    before = fingerprint("users_changing:build")
    file.write_text("depth = 2\n")
    assert fingerprint("users_changing:build").keys() == before.keys()
    assert fingerprint("users_changing:build") != before


@pytest.mark.parametrize("source", ["users_nothing:build", "users_nothing.nets:build"])
def test_a_module_that_does_not_exist_is_named_with_where_it_was_sought(project, source):
    with pytest.raises(EngineryError) as caught:
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


def test_of_a_failure_the_last_places_in_the_users_code_are_told():
    def fail(depth):
        if depth == 0:
            raise ValueError("\nno depth left:\n\n\ttake a smaller one,\n  or none\nand more that nobody reads")
        fail(depth - 1)

    first, *places = users_part(raised_by(fail, 5)).split("\n  ")
    assert first == "ValueError: no depth left: take a smaller one, or none"
    assert len(places) == 3
    assert [place.rpartition(": ")[2] for place in places] == [
        "fail(depth - 1)",
        "fail(depth - 1)",
        r'raise ValueError("\nno depth left:\n\n\ttake a smaller one,\n  or none\nand more that nobody reads")',
    ]
    assert all(place.startswith(f"{__file__}, line ") and ", in fail: " in place for place in places)


@pytest.mark.parametrize("told", ["from", "while handling"])
def test_what_an_error_was_raised_for_is_told_in_its_line(told):
    def fail():
        try:
            Path("/nowhere/at/all").read_bytes()
        except OSError as error:
            if told == "from":
                raise RuntimeError("could not build") from error
            raise RuntimeError("could not build")  # noqa: B904

    first, *places = users_part(raised_by(fail)).split("\n  ")
    assert first == (
        "RuntimeError: could not build, because of FileNotFoundError: "
        "[Errno 2] No such file or directory: '/nowhere/at/all'"
    )
    assert [place.partition(", in ")[2].partition(":")[0] for place in places] == ["raised_by", "fail"]


def test_an_error_that_hides_its_reason_keeps_it_hidden():
    def fail():
        try:
            Path("/nowhere/at/all").read_bytes()
        except OSError:
            raise RuntimeError("could not build") from None

    assert users_part(raised_by(fail)).startswith("RuntimeError: could not build\n")


def test_of_a_message_without_end_the_beginning_is_told():
    told = users_part(ValueError("x" * 100_000))
    assert len(told) < 500
    assert told.endswith("x…")


def test_places_in_libraries_are_left_out():
    told = users_part(raised_by(np.linalg.inv, np.zeros((2, 2))))
    first, place = told.split("\n  ")
    assert first == "LinAlgError: Singular matrix"
    assert place.startswith(__file__)


def test_an_error_without_words_is_its_kind():
    def fail():
        raise NotImplementedError

    assert users_part(raised_by(fail)).startswith("NotImplementedError\n")


def test_code_that_cannot_be_read_is_told_by_its_line():
    assert users_part(raised_by(compile, "x = 1\ny = (", "/home/user/nets.py", "exec")) == (
        "SyntaxError: '(' was never closed (/home/user/nets.py, line 2)"
    )

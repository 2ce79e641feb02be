"""notebooks/tour.ipynb: it runs from top to bottom elsewhere, and is committed with what it shows."""

import os
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from support.command import ROOT
from support.warm_python import warm_python

TOUR = ROOT / "notebooks/tour.ipynb"
PICTURES = 3


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """In a copy that has nothing of what the pipeline made."""
    root = tmp_path_factory.mktemp("project")
    for name in ("enginewright", "notebooks", "stages", "tools", "params.yaml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, root / name)
    before = {path.relative_to(root) for path in root.rglob("*")}
    inline = "module://matplotlib_inline.backend_inline"  # as the kernel sets it before it imports matplotlib
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "MPLBACKEND": inline}
    command = [warm_python() / "python3", "notebooks/run.py", "executed.ipynb"]  # which starts the kernel by its like
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    after = {path.relative_to(root) for path in root.rglob("*") if "__pycache__" not in path.parts}
    assert after - before == {Path("executed.ipynb")}
    return nbformat.read(root / "executed.ipynb", as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def pictures(notebook):
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    return [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]


def test_it_runs_in_a_fresh_copy(executed):
    assert [cell.execution_count for cell in code(executed)] == list(range(1, len(code(executed)) + 1))
    assert len(pictures(executed)) == PICTURES
    assert all(len(picture) > 4000 for picture in pictures(executed))


def test_it_shows_what_it_says_by_the_public_interface(executed):
    sources = "".join(cell.source for cell in code(executed))
    assert "import enginewright\n" in sources
    assert "from enginewright" not in sources
    text = "".join(output.get("text", "") for cell in code(executed) for output in cell.outputs)
    assert "PyTorch is right on 9" in text


def test_nothing_was_complained_of(executed):
    outputs = [output for cell in code(executed) for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


def test_the_committed_one_has_its_outputs():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    assert len(pictures(notebook)) == PICTURES
    assert str(ROOT) not in TOUR.read_text()

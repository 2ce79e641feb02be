"""Two versions of a runtime are compared on this machine: here the same one twice, or one that is wrong on purpose."""

import os
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from support.params import written
from support.paths import ROOT
from support.warm_python import warm_python

from enginewright.cli.commands.compare import run
from enginewright.cli.two_versions import PAGE, worst_of_outputs
from enginewright.core.errors import EnginewrightError
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.cure import CURE, UNCURED, Cure, GraphChange, Remedy
from enginewright.precision.islands import changed

CONVERTED = Path("artifacts/converted/int8")
WRONG = """
import builtins
from support.wrong_compiler import be_wrong
be_wrong(builtins.type("Patch", (), {"setattr": staticmethod(setattr)}), {"conv2"}, "scaled")
"""


@pytest.fixture
def pythons(tmp_path):
    """Return the Pythons of two environments, one of which has a runtime that is wrong."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(WRONG)
    found = {}
    for name, places in {"right": [ROOT], "wrong": [tmp_path / "site", ROOT, ROOT / "tests"]}.items():
        found[name] = tmp_path / f"{name}-python"
        path = os.pathsep.join(map(str, places))
        found[name].write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec "{warm_python()}/python3" "$@"\n')
        found[name].chmod(0o755)
    return found


@pytest.fixture
def root(project, tiny_onnx):
    root = project()
    (root / "artifacts/simplified").mkdir()
    shutil.copyfile(tiny_onnx, root / "artifacts/simplified/model.onnx")
    sizes = {f"build.profile.batch.{bound}": size for bound, size in {"min": 1, "opt": 4, "max": 8}.items()}
    written(root, {"runtime": "onnxruntime", "benchmark.seconds": 0.2, "benchmark.batches": [1, 4], **sizes})
    return root


def compare(old=None, new=None, before=None):
    return run(Namespace(before=before, after=None, old=old, new=new, confidence=0.99, race=False, json=False))


def test_the_same_version_is_safe_and_one_that_is_wrong_needs_a_cure(root, pythons, capsys):
    assert compare(pythons["right"], pythons["right"]) in (0, 3)  # a race of the same may be lost by chance
    said, *_ = capsys.readouterr().out.splitlines()
    assert said.startswith(("int8: safe", "int8: slower"))
    assert said.endswith("a difference of 0 to 0; cure: none is needed")
    assert compare(pythons["right"], pythons["wrong"]) == 3
    said, *_ = capsys.readouterr().out.splitlines()
    assert said.startswith("int8: wrong; ")
    assert said.endswith("cure: needed by the new version")
    page = PAGE.read_text()
    assert said in page
    assert "| int8 | wrong | " in page

    here, graph = describe_machine("onnxruntime"), load_graph(CONVERTED / "model.onnx")
    shutil.copyfile(CONVERTED / "model.onnx", CONVERTED / UNCURED)
    island = GraphChange(nodes=("conv2",))
    save_graph(changed(graph, island), CONVERTED / "model.onnx")
    remedy = Remedy(change=island, operations=("Conv",), error=0.0, milliseconds=None, speed=None)
    facts = here.model_dump(include={"runtime", "runtime_version", "device_name"})
    cure = Cure(precision="int8", remedies=(remedy,), error=0.5, batch=4, milliseconds=None, builds=3, **facts)
    cure.write(CONVERTED / CURE)
    assert compare(pythons["right"], pythons["wrong"]) == 3
    assert f"cure: needed by the new version; that of {cure.found_with} helps\n" in capsys.readouterr().out
    assert compare(pythons["right"], pythons["right"]) in (0, 3)
    assert "cure: the cure is needed by neither\n" in capsys.readouterr().out


def test_the_loss_of_a_sample_is_that_of_its_worst_output():
    exact = {"boxes": np.full((2, 4), 100.0), "scores": np.full((2, 1), 0.5)}
    got = {"boxes": np.float64([[100] * 4, [150] * 4]), "scores": np.float64([[0.25], [0.5]])}
    assert worst_of_outputs(exact, got).tolist() == [0.5, 0.5]


def test_environments_that_cannot_answer_and_half_a_question_are_refused(root, pythons, tmp_path):
    empty = tmp_path / "empty-python"
    empty.write_text("#!/bin/sh\nexit 1\n")
    empty.chmod(0o755)
    with pytest.raises(EnginewrightError, match=r"empty-python ended, as said above: it needs Enginewright's extra"):
        compare(pythons["right"], empty)
    with pytest.raises(EnginewrightError, match="give two runs, or --from and --to"):
        compare(pythons["right"])
    with pytest.raises(EnginewrightError, match="give two runs, or --from and --to"):
        compare(before="reports")

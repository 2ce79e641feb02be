"""`enginewright cure` finds what cures an engine, and the stages follow that as long as it fits the machine."""

import shutil
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from support.int8_project import TO_VALIDATE
from support.params import written
from support.wrong_compiler import be_wrong

from enginewright.cli.commands.cure import run
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.onnx_file import load_graph
from enginewright.pipeline import engine as stage
from enginewright.pipeline.graphs import cured_graph
from enginewright.pipeline.machine import fitting_cures
from enginewright.precision.cure import CURE, UNCURED, Cure
from enginewright.precision.find_cure import layers_to_keep

ENGINE, CONVERTED, FOUND = Path("artifacts/engines/int8"), Path("artifacts/converted/int8"), Path("cures/int8.json")


def cure(folder=ENGINE, without=False):
    return run(Namespace(engine=folder, seconds=60.0, builds=60, without=without))


def test_an_engine_that_is_right_needs_none(project, capsys):
    project()
    assert cure() == 0
    assert capsys.readouterr().out == f"{ENGINE} is right: it differs from its graph by 0.15 at most\n"
    assert not FOUND.exists()


def test_what_is_found_is_followed_where_it_fits_and_named_where_not(project, capsys, monkeypatch, tmp_path):
    be_wrong(monkeypatch, {"conv2"}, "scaled")
    root = project()
    assert cure() == 0
    found = Cure.read(FOUND)
    assert (found.change.nodes, found.remedies[0].operations) == (("conv2",), ("Conv",))
    assert f"int8: {found.in_words()}\n{FOUND} has it: commit it, and run `dvc repro`\n" in capsys.readouterr().out
    here, fitting = describe_machine("onnxruntime"), tmp_path / "cures.json"
    later = here.model_copy(update={"runtime_version": "9.9"})
    assert fitting_cures(FOUND.parent, later).by_precision == {}
    again = f"this is {later.in_words()}: if an engine is wrong here, too, run `enginewright cure` again\n"
    assert capsys.readouterr().out == f"{FOUND} was found with {found.found_with}, {again}"
    Path("cures/damaged.json").write_text("{")
    with pytest.raises(EnginewrightError, match=r"damaged\.json is damaged .*: restore it from git, or delete it$"):
        fitting_cures(FOUND.parent, here)
    Path("cures/damaged.json").unlink()
    fitting_cures(FOUND.parent, here).write(fitting)

    graph = load_graph(CONVERTED / "model.onnx")
    assert cured_graph("fp16", graph, fitting, CONVERTED / CURE) is graph
    cured = cured_graph("int8", graph, fitting, CONVERTED / CURE)
    assert {*layers_to_keep(graph, False)} - {*layers_to_keep(cured, False)} == {"conv2"}
    assert Cure.read(CONVERTED / CURE) == found
    with pytest.raises(EnginewrightError, match=r"is wrong in spite of cures/int8\.json: delete that file"):
        cure()
    (CONVERTED / CURE).rename("cure.json")
    with pytest.raises(EnginewrightError, match="has no cure"):
        cure(without=True)
    Path("cure.json").rename(CONVERTED / CURE)
    shutil.copyfile(CONVERTED / "model.onnx", CONVERTED / UNCURED)
    assert cure(without=True) == 0
    assert capsys.readouterr().out.endswith(f"{FOUND} is needed still\n")
    monkeypatch.undo()  # the compiler is right
    monkeypatch.chdir(root)
    assert cure(without=True) == 0
    assert capsys.readouterr().out.endswith(f"{FOUND} is no longer needed: delete it, and run `dvc repro`\n")
    graph.graph.node[0].name = "renamed"
    del graph.graph.node[:]
    assert cured_graph("int8", graph, fitting, CONVERTED / CURE) is graph
    assert "int8 is no longer the graph that was cured" in capsys.readouterr().out


@pytest.mark.parametrize(("place", "asked"), [("precisions", True), ("search", True), ("precisions", False)])
def test_validation_looks_for_a_cure_where_it_is_asked_to(place, asked, project, monkeypatch):
    be_wrong(monkeypatch, {"conv2"}, "scaled")
    root, started = project(), []
    written(root, {f"{place}.int8.cure": asked})
    monkeypatch.setattr(stage, "subprocess", Namespace(run=started.append))
    paths = stage.ValidatePaths(**{name: Path(path) for name, path in TO_VALIDATE.items()})
    stage.validate(Params.read(), "int8", paths)
    assert started == [[sys.executable, "-m", "enginewright.cli", "cure", ENGINE]] * asked

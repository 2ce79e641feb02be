"""`enginewright keep` writes what a search found into params.yaml, and keeps its comments."""

import shutil

import pytest
from support.paths import ROOT
from support.searches import search_of, step_of

from enginewright.cli.commands.keep import RESCUED, SEARCHED, freeze_search
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.precision.records import RESCUE, Rescue, Search


@pytest.fixture
def project(tmp_path, monkeypatch):
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    losses = dict.fromkeys(("conv", "blocks.1/add", "head"), 0.1)
    found = search_of(losses, 0.1, [step_of(2, 0.5, 0.2)], ("conv", "blocks.1/add"))
    SEARCHED.mkdir(parents=True)
    found.write(SEARCHED / "int8.json")
    write_rescue()


def write_rescue(*kept):
    record = Rescue(precision="int8", samples=(1, 1), error=0.1, at_once=0.1, tried=(), kept=kept, enough=None)
    record.write(RESCUED / "int8" / RESCUE)


def test_what_was_found_is_kept_and_nothing_is_searched(project, tmp_path):
    before = (tmp_path / "params.yaml").read_text()
    assert "keeps 2 layers of int8" in freeze_search("int8")
    params, after = Params.read(), (tmp_path / "params.yaml").read_text()
    assert params.search == {}
    assert params.precisions["int8"].made_from == "calibrated"
    assert params.precisions["int8"].keep.nodes == ("conv", r"blocks\.1/add")
    assert before.count("#") - after.count("#") <= 1, "the comment on search.int8.seconds goes with it"
    with pytest.raises(EnginewrightError, match=r"params\.yaml searches nothing for 'int8': search has no precision"):
        freeze_search("int8")


def test_rescues_need_the_search(project):
    write_rescue("round")
    assert "searches only what is left to do after rescues" in freeze_search("int8")
    params = Params.read()
    assert params.precisions["int8"].is_searched
    assert params.precisions["int8"].keep.nodes == ("conv", r"blocks\.1/add")


def test_nothing_is_written_where_nothing_was_spared(project, tmp_path):
    write_rescue("round")
    found, before = SEARCHED / "int8.json", (tmp_path / "params.yaml").read_text()
    Search.read(found).model_copy(update={"spared": ()}).write(found)
    assert "spared no layer of int8" in freeze_search("int8")
    assert (tmp_path / "params.yaml").read_text() == before


def test_without_a_search_nothing_is_kept(project, tmp_path):
    before = (tmp_path / "params.yaml").read_text()
    with pytest.raises(EnginewrightError, match="searches nothing for 'fp16': search has int8"):
        freeze_search("fp16")
    (SEARCHED / "int8.json").unlink()
    with pytest.raises(EnginewrightError, match=r"int8\.json is missing: run `dvc repro`"):
        freeze_search("int8")
    assert (tmp_path / "params.yaml").read_text() == before

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.utils.hydra import apply_overrides
from support.paths import ROOT

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params, apply_recipe

READY = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.fixture
def params_file(tmp_path):
    return Path(shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml"))


@pytest.fixture
def recipe(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


def comments(path):
    text = re.sub(r"(?m)^  preprocessing:.*\n( {4}.*\n)*", "", path.read_text())  # null where samples are arrays
    return [line.partition("#")[2].strip() for line in text.splitlines() if "#" in line]


def test_there_are_recipes_for_networks_of_each_family():
    families = {"resnet50", "mobilenet_v3", "efficientnet_b0", "vit_b_16", "swin_t", "convnext_tiny"}
    assert families <= {path.stem for path in READY}


@pytest.mark.parametrize("ready", READY, ids=lambda path: path.stem)
def test_every_ready_recipe_applies_and_keeps_the_comments(ready, params_file):
    before = Params.read(params_file)
    said = comments(params_file)
    apply_recipe(ready, params_file)
    assert Params.read(params_file) != before
    assert comments(params_file) == said


def test_a_recipe_changes_only_what_it_names(recipe, params_file):
    before = Params.read(params_file).model_dump()
    apply_recipe(recipe("model: {source: resnet50}\nbenchmark: {batches: [1, 8]}\n"), params_file)
    before["model"]["source"] = "resnet50"
    before["benchmark"]["batches"] = (1, 8)
    assert Params.read(params_file).model_dump() == before


def test_every_other_line_stays_as_it_is(recipe, params_file):
    before = params_file.read_text().splitlines()
    apply_recipe(recipe("weights: {training: {epochs: 3}}\n"), params_file)
    changed = [line for line in params_file.read_text().splitlines() if line not in before]
    assert [line.split("#")[0].strip() for line in changed] == ["epochs: 3"]


def test_parameters_that_are_a_link_stay_a_link(recipe, params_file):
    link = params_file.with_name("link.yaml")
    link.symlink_to(params_file)
    apply_recipe(recipe("weights: {training: {epochs: 3}}\n"), link)
    assert link.is_symlink()
    assert Params.read(params_file).weights.training.epochs == 3


def test_a_recipe_applied_twice_changes_nothing_more(recipe, params_file):
    small = recipe("samples: {preprocessing: {mean: [0.1, 0.2, 0.3]}}\n")
    apply_recipe(small, params_file)
    once = params_file.read_text()
    apply_recipe(small, params_file)
    assert params_file.read_text() == once


def test_a_recipe_is_laid_over_what_an_experiment_left(recipe, params_file):
    """`dvc exp run -S` writes the whole file anew, with a line for each item of a list."""
    apply_overrides(str(params_file), ["samples.seed=1"])
    assert "\n  - eager\n" in params_file.read_text()
    apply_recipe(recipe("benchmark: {batches: [1, 2], baselines: [eager, compile], requests: [3]}\n"), params_file)
    found = Params.read(params_file).benchmark
    assert (found.batches, found.baselines, found.requests) == ((1, 2), ("eager", "compile"), (3,))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("modle: {source: resnet50}\n", "recipe.yaml: modle is not a parameter; did you mean 'model'?"),
        ("benchmark: {batches: [99]}\n", "recipe.yaml: benchmark.batches: 99 lies outside build.profile.batch 1 to 16"),
        ("model: [\n", "recipe.yaml is not valid YAML: line 2: "),
        ("", "recipe.yaml holds no parameters"),
        ("- model\n", "recipe.yaml holds no parameters"),
    ],
)
def test_an_invalid_recipe_leaves_the_parameters_untouched(recipe, params_file, text, wanted):
    before = params_file.read_bytes()
    with pytest.raises(EnginewrightError) as caught:
        apply_recipe(recipe(text), params_file)
    assert wanted in str(caught.value)
    assert ".tmp" not in str(caught.value)
    assert params_file.read_bytes() == before
    assert sorted(path.name for path in params_file.parent.iterdir()) == ["params.yaml", "recipe.yaml"]


def test_a_missing_recipe_is_named(params_file, tmp_path):
    with pytest.raises(EnginewrightError, match=r"nowhere\.yaml is not in "):
        apply_recipe(tmp_path / "nowhere.yaml", params_file)


@pytest.mark.parametrize(("given", "said"), [("recipe.yaml", "runtime: input should be"), (".", "Is a directory")])
def test_the_command_ends_with_one_line_on_a_bad_recipe(recipe, params_file, given, said):
    recipe("runtime: nothing\n")
    command = [sys.executable, "-m", "enginewright.pipeline", given]
    ended = subprocess.run(command, cwd=params_file.parent, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert said in ended.stderr

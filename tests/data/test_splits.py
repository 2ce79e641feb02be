import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import LABELLED
from enginewright.core.params.all import Params, apply_recipe
from enginewright.data.sample_set import SampleSet, input_file
from enginewright.data.sources import open_source
from enginewright.data.sources.truth import ranked
from enginewright.data.splits import shared_images, split, write_split
from enginewright.pipeline.samples import samples as stage


def test_splits_are_disjoint_and_have_the_asked_sizes(samples_params):
    splits = split(20, samples_params())
    assert {name: len(indices) for name, indices in splits.items()} == {
        "validation": 5,
        "training": 4,
        "calibration": 3,
    }
    chosen = [index for indices in splits.values() for index in indices]
    assert len(set(chosen)) == 12
    assert set(chosen) <= set(range(20))


def test_the_seed_decides_the_split(samples_params):
    assert split(1000, samples_params(seed=1)) == split(1000, samples_params(seed=1))
    assert split(1000, samples_params(seed=1)) != split(1000, samples_params(seed=2))


def test_the_size_of_the_calibration_set_changes_nothing_else(samples_params):
    few, many = split(20, samples_params(calibration=2)), split(20, samples_params(calibration=10))
    assert few["validation"] == many["validation"]
    assert few["training"] == many["training"]
    assert many["calibration"][:2] == few["calibration"]


def test_all_images_may_be_used(samples_params):
    chosen = [index for indices in split(12, samples_params()).values() for index in indices]
    assert sorted(chosen) == list(range(12))


def test_too_few_images_are_refused_with_the_sums(samples_params):
    images, sums = r"^samples\.source: data/pets has 11 samples, ", r"\(validation 5, training 4, calibration 3\)"
    message = rf"{images}but params\.yaml asks for 12 {sums}"
    with pytest.raises(EnginewrightError, match=message):
        split(11, samples_params())


def test_a_split_is_written_in_order_and_read_back(pets, samples_params):
    source = open_source(samples_params(), Path("data"))
    write_split(source, [2, 0], samples_params(), Path("artifacts/validation"))
    samples = SampleSet.open(Path("artifacts/validation"))
    pixels = np.load(Path("artifacts/validation") / input_file(0))
    assert pixels.shape == (2, 3, 8, 8)
    assert pixels[:, 0, 0, 0].tolist() == [30, 20]
    assert samples.manifest.inputs == ("input",)
    assert samples.labels.tolist() == [1, 0]
    assert samples.manifest.class_names == ("cat", "dog")
    assert samples.manifest.preprocessing == samples_params().preprocessing


def test_a_split_may_be_empty(pets, samples_params):
    """The training split is empty if the weights are given."""
    write_split(open_source(samples_params(), Path("data")), [], samples_params(), Path("empty"))
    samples = SampleSet.open(Path("empty"))
    assert (len(samples), samples.labels.tolist(), list(samples.batches(4))) == (0, [], [])


def test_a_broken_image_is_named_and_leaves_no_half_split(pets, samples_params):
    Path("data/pets/dog/1.png").write_bytes(b"\x89PNG broken")
    source = open_source(samples_params(), Path("data"))
    with pytest.raises(EnginewrightError, match=r"data/pets/dog/1\.png is not an image that can be decoded"):
        write_split(source, [0, 1, 2], samples_params(), Path("out/split"))
    assert list(Path("out").iterdir()) == []


def test_all_broken_images_are_named_at_once(pets, samples_params):
    files = [str(file) for file in open_source(samples_params(), Path("data")).files]
    for file in files[1:]:
        Path(file).write_bytes(b"\x89PNG broken")
    source = open_source(samples_params(), Path("data"))
    with pytest.raises(EnginewrightError) as caught:
        write_split(source, [1], samples_params(), Path("out/split"))
    said = f"samples.source: {len(files) - 1} of {len(files)} images cannot be decoded, {', '.join(files[1:6])}"
    assert str(caught.value).startswith(said)
    assert ": remove or convert them. One of them: data/pets" in str(caught.value)


def test_the_same_bytes_in_several_splits_are_reported(manifest):
    def having(*samples):
        return manifest.model_copy(update={"samples": samples})

    first, second, third = manifest.samples[:3]
    copy = replace(first, name="a copy")
    assert (
        shared_images({"validation": having(first, second), "calibration": having(third), "training": having()}) is None
    )
    assert shared_images({"validation": having(first, copy), "calibration": having(third)}) is None
    assert shared_images({"validation": having(first, second), "calibration": having(third, copy)}) == (
        "1 images are in several splits under different names, byte for byte the same: "
        "image 0 (validation) and a copy (calibration)"
    )


def test_unlabeled_images_leave_no_labels(pets, samples_params):
    source = open_source(samples_params("data/pets/cat/deeper"), Path("data"))
    write_split(source, [0], samples_params(), Path("validation"))
    samples = SampleSet.open(Path("validation"))
    assert (samples.labels, samples.manifest.class_names) == (None, ())


def test_the_stage_writes_all_splits_and_names_copies(pets, capsys):
    """Two of the four images are the same."""
    shutil.copyfile(pets / "dog/1.png", pets / "dog/2.png")
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    recipe = Path("recipe.yaml")
    recipe.write_text("samples: {source: data/pets, validation: 2, training: 0, calibration: 2}\nweights: {source: x}")
    apply_recipe(recipe)
    LABELLED.write(Path("task.json"))
    places = ("data", "data/texts", "task.json", "out/training", "out/calibration", "out/validation")
    stage(Params.read(), *map(Path, places))
    splits = {name: SampleSet.open(Path("out") / name) for name in ("training", "calibration", "validation")}
    assert {name: len(samples) for name, samples in splits.items()} == {
        "training": 0,
        "calibration": 2,
        "validation": 2,
    }
    said = capsys.readouterr().out
    hashes = [sample.sha256 for samples in splits.values() for sample in samples.manifest.samples]
    assert len(set(hashes)) == 3
    apart = len({sample.sha256 for sample in splits["validation"].manifest.samples}) == 2
    assert ("MIND: 1 images are in several splits" in said) == apart
    assert apart  # seed 0 puts them into different splits


def test_answers_to_one_question_stay_together(samples_params):
    questions = np.arange(60) % 10
    params = samples_params().model_copy(update={"validation": 24, "training": 0, "calibration": 30})
    divided = split(60, params, ranked(np.zeros((60, 1)), questions))
    assert (len({*divided["validation"], *divided["calibration"]}), len(divided["validation"])) == (54, 24)
    assert len(set(questions[divided["validation"]].tolist())) == 4
    assert divided["validation"] != split(60, params)["validation"]

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import TextPreprocessing
from enginewright.data.sample_set import Manifest, PreparedTexts, SampleSet
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.model.checkpoint import Weights
from enginewright.model.source_model import (
    open_source_model,
    require_runs,
    require_same_alone,
    require_steady,
    run_model,
)
from enginewright.tasks.choose import misfit_of, task_of

FEEDS = {"input": np.random.default_rng(0).normal(0, 1, (2, 6)).astype(np.float32)}


class Net(nn.Module):
    """A model whose forward is the given function."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, pixels):
        return self.answer(pixels)


def run_of(answer):
    return partial(run_model, Net(answer))


def samples_of(classes):
    names = tuple(map(str, range(classes)))
    about = {"task": "classification", "source": "x", "inputs": ("input",), "preprocessing": None, "samples": ()}
    return SampleSet(Path("nowhere"), Manifest(class_names=names, **about))


def require_fits(run, feeds, samples, scores=None):
    names = samples.manifest.class_names
    misfit = partial(misfit_of, task_of("classification", scores, names), truth=samples.truth, class_names=names)
    return require_runs(run, feeds, samples, misfit)


def refusal_of(answer, classes=0):
    with pytest.raises(EnginewrightError) as caught:
        require_fits(run_of(answer), FEEDS, samples_of(classes))
    return str(caught.value)


def test_the_model_of_the_weights_is_run(tmp_path):
    model = nn.Linear(6, 3)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    arguments = {"in_features": 6, "out_features": 3}
    Weights(model="torch.nn:Linear", arguments=arguments, source="given", classes=None, sha256="0" * 64).write(
        tmp_path / "weights.json"
    )
    (logits,) = open_source_model(tmp_path)(FEEDS).values()
    wanted = FEEDS["input"] @ model.weight.detach().numpy().T + model.bias.detach().numpy()
    assert logits == pytest.approx(wanted, abs=1e-5)


def test_a_given_graph_is_run_as_it_is_written(tmp_path, pair_onnx, pair_feeds):
    (tmp_path / "model.onnx").write_bytes(pair_onnx.read_bytes())
    feeds = pair_feeds(2, 8, 8)
    got, wanted = open_source_model(tmp_path)(feeds), run_graph(open_as_written(onnx.load(pair_onnx)), feeds)
    assert got.keys() == {"scores", "map"}
    assert all(np.array_equal(got[name], wanted[name]) for name in wanted)


def test_the_whole_reason_of_a_given_graph_that_fails_is_reported(tmp_path, tiny_onnx):
    (tmp_path / "model.onnx").write_bytes(tiny_onnx.read_bytes())
    with pytest.raises(EnginewrightError) as caught:
        open_source_model(tmp_path)({"input": np.zeros((2, 3, 9, 8), np.float32)})
    told = str(caught.value)
    assert told.startswith("model.source: the model fails on input (2, 3, 9, 8): ")
    assert "index: 2 Got: 9 Expected: 8" in told
    assert "\n" not in told


def test_a_given_graph_that_cannot_be_opened_is_reported(tmp_path, tiny_graph):
    strange = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    strange.graph.node[0].domain = "com.example"
    strange.opset_import.add(domain="com.example", version=1)
    onnx.save(strange, tmp_path / "model.onnx")
    with pytest.raises(EnginewrightError, match=r"^model\.source: ONNX Runtime cannot open the file: .*com\.example"):
        open_source_model(tmp_path)


def test_a_given_graph_of_an_opset_to_come_says_which_is_executed(tmp_path, tiny_graph):
    newer = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    newer.opset_import[0].version = onnx.defs.onnx_opset_version()
    onnx.save(newer, tmp_path / "model.onnx")
    with pytest.raises(
        EnginewrightError, match=r"^model\.source: the file is of a newer opset .*: export it with opset \d+, "
    ):
        open_source_model(tmp_path)


def test_a_model_that_fails_for_a_batch_size_is_reported_in_every_stage(tmp_path, monkeypatch):
    """The stage reference runs larger batches than those that the export tries."""
    monkeypatch.setattr(
        "enginewright.model.source_model.load_model", lambda folder: Net(lambda pixels: pixels.reshape(2, 6))
    )
    run = open_source_model(tmp_path)
    assert run(FEEDS)["logits"].shape == (2, 6)
    with pytest.raises(EnginewrightError, match=r"^model\.source: the model fails on input \(3, 6\): RuntimeError: "):
        run({"input": np.zeros((3, 6), np.float32)})


def test_outputs_are_float32_whatever_the_model_computes_in():
    assert run_of(lambda pixels: pixels.half())(FEEDS)["logits"].dtype == np.float32


def test_a_model_that_accepts_the_samples_passes():
    def both(pixels):
        return {"map": pixels.reshape(2, 2, 3), "scores": pixels[:, :3]}

    for answer, classes in ((lambda pixels: pixels[:, :3], 3), (both, 3), (lambda pixels: pixels.reshape(2, 2, 3), 0)):
        require_fits(run_of(answer), FEEDS, samples_of(classes))  # 0: the number of classes is unknown


def test_a_model_that_accepts_one_sample_only_is_refused_with_the_setting_for_it():
    def answer(pixels):
        if len(pixels) != 1:
            raise AssertionError("one at a time")  # not by `assert`, to which pytest adds words
        return pixels[:, :3]

    told = refusal_of(answer)
    assert told.startswith("model.source: the model fails on input (2, 6): AssertionError: one at a time\n")
    assert told.endswith("\nIt takes a single sample: set min, opt and max of build.profile.batch to 1")


def test_a_model_that_accepts_two_samples_is_refused_without_this_setting():
    def answer(pixels):
        return pixels + torch.zeros(3, 6)[: len(pixels)]

    feeds = {"input": np.zeros((4, 6), np.float32)}
    with pytest.raises(EnginewrightError) as caught:
        require_fits(run_of(answer), feeds, samples_of(0))
    assert str(caught.value).startswith("model.source: the model fails on input (4, 6): RuntimeError: ")
    assert "It takes a single sample" not in str(caught.value)


def test_a_model_that_exits_is_reported_like_one_that_fails():
    def answer(pixels):
        raise SystemExit("enough")

    assert refusal_of(answer).startswith("model.source: the model fails on input (2, 6): SystemExit: enough\n")


def test_a_model_that_fails_is_reported_with_the_shapes_and_the_users_lines():
    def answer(pixels):
        return pixels @ torch.ones(5, 3)

    told = refusal_of(answer)
    first, *places = told.split("\n  ")
    assert first.startswith("model.source: the model fails on input (2, 6): RuntimeError: ")
    assert [place.rpartition(": ")[2] for place in places] == [
        "return self.answer(pixels)",
        "return pixels @ torch.ones(5, 3)",
    ]
    assert all(place.startswith(f"{__file__}, line ") for place in places)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (lambda pixels: pixels.sum(), "logits is float32 of shape ()"),
        (lambda pixels: pixels.argmax(1), "logits is int64 of shape (2,)"),
        (lambda pixels: {"scores": pixels, "found": pixels > 0}, "found is bool of shape (2, 6)"),
        (lambda pixels: torch.complex(pixels, pixels), "logits is complex64 of shape (2, 6)"),
        (lambda pixels: pixels[:1], "logits is float32 of shape (1, 6)"),
        (lambda pixels: {"scores": pixels, "boxes": pixels.reshape(3, 4)}, "boxes is float32 of shape (3, 4)"),
    ],
)
def test_an_output_without_the_batch_or_of_another_type_is_refused_by_name(answer, found):
    assert refusal_of(answer) == (
        f"model.source: output {found}; it must be floats with the batch, here 2, as first axis"
    )


def test_another_number_of_classes_is_reported_with_the_shapes_of_the_outputs():
    assert refusal_of(lambda pixels: pixels[:, :3], classes=10) == (
        "samples.source has 10 classes, and no output of the model has as many. If they are some of the model's, list "
        "all under samples.class_names. If its outputs are no scores of classes, set task, or model.scores: none. The "
        "model returns logits (2, 3), which would fit task: embedding or regression"
    )


def test_a_single_class_is_told_where_to_list_the_others():
    said = refusal_of(lambda pixels: pixels[:, :3], classes=1)
    assert said.startswith("samples.source has 1 class, and no output of the model has as many")
    assert "list all under samples.class_names" in said


def test_a_model_without_scores_passes_if_model_scores_is_none():
    feeds, outputs = FEEDS, run_of(lambda pixels: pixels[:, :1])
    assert require_fits(outputs, feeds, samples_of(2), "none")["logits"].shape == (2, 1)
    with pytest.raises(EnginewrightError, match=r"set task, or model\.scores: none"):
        require_fits(outputs, feeds, samples_of(2))


def test_the_user_must_choose_between_several_outputs_that_may_be_scores():
    def answer(pixels):
        return {"centre": pixels[:, :2], "scores": pixels[:, 2:4], "map": pixels[:, :3]}

    assert refusal_of(answer, classes=2) == (
        "samples.source has 2 classes, and outputs centre, scores of the model have as many: "
        "name the one with their scores as model.scores, or set it to none. The model returns centre (2, 2), "
        "scores (2, 2), map (2, 3)"
    )
    for scores in ("scores", "none"):
        require_fits(run_of(answer), FEEDS, samples_of(2), scores)
    require_fits(run_of(answer), FEEDS, samples_of(3))
    require_fits(run_of(answer), FEEDS, samples_of(0))  # without classes there is no accuracy


@pytest.mark.parametrize(
    ("scores", "classes", "wanted"),
    [("odds", 0, "a score per class"), ("logits", 3, "a score for each of 3 classes")],
)
def test_the_output_that_model_scores_names_must_hold_scores(scores, classes, wanted):
    with pytest.raises(EnginewrightError) as caught:
        require_fits(run_of(lambda pixels: pixels), FEEDS, samples_of(classes), scores)
    assert str(caught.value) == (
        f"model.scores: '{scores}' is no output with {wanted}. The model returns logits (2, 6), which would fit task: "
        "embedding or regression"
    )


def test_an_error_of_our_own_is_reported_as_it_is():
    assert refusal_of(lambda pixels: "done") == "model.source: the model returns str, not tensors"


def test_a_model_that_answers_at_random_is_refused():
    asked = [FEEDS]
    for answer, said in {
        nn.functional.dropout: "answers the same samples differently each time: the relative error of logits is",
        torch.exp: None,
    }.items():
        run = run_of(answer)
        answered = [run(feeds) for feeds in asked]
        with pytest.raises(EnginewrightError, match=said) if said else nullcontext():
            require_steady(run, asked, answered)


@pytest.mark.parametrize(
    ("answer", "told"), [(torch.clone, None), (lambda pixels: pixels - pixels[:1], "depends on the others of its")]
)
def test_a_model_whose_answers_depend_on_the_batch_is_refused(answer, told):
    run = run_of(answer)
    with pytest.raises(EnginewrightError, match=told) if told else nullcontext():
        require_same_alone(run, FEEDS, run(FEEDS), task_of("classification").comparable)


def test_a_detector_whose_boxes_swap_places_answers_the_same():
    """Two boxes of nearly the same score may come in another order when the image is alone."""
    rows = np.array([[0, 0, 8, 8, 0.9, 0], [20, 0, 28, 8, 0.5, 1], [40, 0, 48, 8, 0.49999, 1]], np.float32)
    detection = task_of("detection", None, ("one", "two"))
    together = {"found": np.stack([rows, rows])}
    for alone, told in ((rows[[0, 2, 1]], None), (rows[:0], "depends on the others of its")):
        found = np.zeros((1, 3, 6), np.float32)
        found[0, : len(alone)] = alone
        with pytest.raises(EnginewrightError, match=told) if told else nullcontext():
            require_same_alone(lambda feeds, found=found: {"found": found}, FEEDS, together, detection.comparable)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_outputs_of_nan_or_infinity_are_refused(value):
    assert "holds NaN or infinity: are the weights whole" in refusal_of(lambda pixels: pixels * value)


def test_a_forward_that_writes_into_its_input_does_not_change_the_samples():
    class Greedy(nn.Module):
        def forward(self, x):
            return x.sub_(1).flatten(1)

    feeds = {"input": np.ones((2, 3), np.float32)}
    first, second = (partial(run_model, Greedy())(feeds) for _ in range(2))
    assert np.array_equal(first["logits"], second["logits"])
    assert (feeds["input"] == 1).all()


def test_a_tokenizer_with_more_tokens_than_the_model_is_named():
    words, feeds = nn.Embedding(6, 4), {"ids": np.array([[2, 9]])}
    prepared = PreparedTexts(
        how=TextPreprocessing(tokenizer="t.json", longest=8), tokenizer_sha256="", vocabulary=10, cut=0, together=1
    )
    samples = samples_of(0)
    samples = replace(samples, manifest=samples.manifest.model_copy(update={"text": prepared}))
    with pytest.raises(EnginewrightError, match=r"index out of range.*\n.*knows 10 tokens, and texts have up to 8"):
        require_fits(partial(run_model, words), feeds, samples)

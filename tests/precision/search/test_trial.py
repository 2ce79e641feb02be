"""A trial tells what is lost with sets of layers in floating point, on calibration samples."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from onnx import TensorProto, helper

from enginewright.core.params.precisions import Thresholds
from enginewright.data.sample_set import MANIFEST, TRUTH, SampleSet, input_file
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.onnx_file import load_graph
from enginewright.measure.agreement import Judge
from enginewright.precision import checks
from enginewright.precision.calibration.calibrate import measure
from enginewright.precision.checks import FIRST, LOST, Checks
from enginewright.precision.search import LayerTrial, SwitchedGraph
from enginewright.precision.write_int8 import Bounds, Rounding, write_int8
from enginewright.tasks.choose import task_of

LIMITS = Thresholds(cosine=0.9, relative_error=0.1, agreement=0.5, metric_drop=0.5)
LOOSE = LIMITS.model_copy(update={"cosine": -1e9, "relative_error": 1e9, "agreement": -1e9, "metric_drop": 1e9})


@pytest.fixture
def try_layers(tiny_onnx, samples, tmp_path):
    graph = load_graph(tiny_onnx)
    ranges = {
        name: Bounds(each.lowest, each.amax) for name, each in measure(graph, samples.batches(4), bins=2048).items()
    }
    task = task_of("classification", None, samples.manifest.class_names)

    def narrower(share):
        cut = {name: Bounds(share * each.lowest, share * each.amax) for name, each in ranges.items()}
        return lambda spared: write_int8(load_graph(tiny_onnx), Rounding(cut, largest=64).sparing(spared))

    def made(run_with=None, limits=LIMITS, samples=samples, task=task, batch=None, also_flags=False, unseen=(), **most):
        graph = load_graph(tiny_onnx)
        if also_flags:
            graph.graph.node.append(helper.make_node("IsNaN", ["logits"], ["flags"], name="flags"))
            graph.graph.output.append(helper.make_tensor_value_info("flags", TensorProto.BOOL, ["batch", 16]))
        if batch:
            graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
        rounding = Rounding(ranges, largest=64)

        def convert(spared):
            return write_int8(graph, rounding.sparing(spared))

        found = Checks(graph, samples, Judge(task, samples.truth, limits), **most)
        parts = [(part, narrower(share)) for part, share in unseen]
        trial = LayerTrial(found, partial(SwitchedGraph, rounding=rounding), convert, tmp_path, unseen=parts)
        found.check, found.judge, found.losses_alone = trial.check, trial.judge, trial.losses_alone
        if run_with:
            found.check = lambda spared, work: found.check_run(run_with(spared), len(spared), work)
        return found

    return made


@pytest.fixture
def some(samples, tmp_path):
    """Return a function that makes a set of so many samples."""

    def made(count):
        places = np.arange(count) % len(samples)
        np.save(tmp_path / input_file(0), np.load(samples.folder / input_file(0))[places])
        drawn = tuple(samples.manifest.samples[place] for place in places)
        samples.manifest.model_copy(update={"samples": drawn}).write(tmp_path / MANIFEST)
        return SampleSet.open(tmp_path)

    return made


def always_the_same(spared):
    return lambda feeds: {"logits": np.eye(16, dtype=np.float32)[[5] * len(feeds["input"])]}


def test_less_is_lost_the_more_is_spared(try_layers):
    trial = try_layers()
    none, some, every = (
        trial.check(spared, 0.0) for spared in ([], ["conv2"], ["conv1", "conv2", "pool", "classifier"])
    )
    assert none.relative_error > some.relative_error > 1e-4 > every.relative_error
    assert (every.agreement, every.metric_drop) == (1, 0)
    assert none.spent >= none.relative_error / LIMITS.relative_error
    ((name, alone),) = trial.losses_alone(["conv2"])
    assert name == "conv2"
    assert 0 < alone < none.relative_error * 2


def test_each_part_of_the_samples_is_judged_by_the_ranges_of_the_others(try_layers, some):
    parts = [np.arange(start, 60, 4) for start in range(4)]
    allowed = LOOSE.model_copy(update={"relative_error": 0.5})
    alike, cut = (
        try_layers(samples=some(60), limits=allowed, unseen=list(zip(parts, shares, strict=True)))
        for shares in ((1, 1, 1, 1), (1, 1, 0.2, 1))
    )
    step = alike.check([], 0.0)
    assert step.relative_error / 0.5 < alike.judge([]) == pytest.approx(step.relative_error / 0.5, rel=0.5)
    assert cut.judge([]) > 2 * alike.judge([])


def test_an_end_that_is_sure_lies_further_the_fewer_samples_there_are():
    """A sum of squares of normal numbers, of which about five in a hundred are above it."""
    rng, above = np.random.default_rng(0), 0
    for _ in range(200):
        squares = np.square(rng.normal(size=(2, 32)))
        above += squares[1].mean() > checks.upper_end(lambda often, seen=squares[0]: often @ seen / 32, 32)
    assert 6 <= above <= 10


def test_the_strictest_threshold_counts(try_layers):
    strict = LIMITS.model_copy(update={"cosine": 1 - 1e-9})
    assert try_layers(limits=strict).check([], 0.0).spent > 100 * try_layers().check([], 0.0).spent


@pytest.mark.parametrize(
    ("allowed", "used"),
    [
        ({"cosine": 0.99999}, lambda step: (1 - step.cosine) / 0.00001),
        ({"relative_error": 1e-4}, lambda step: step.relative_error / 1e-4),
        ({"agreement": 0.9999}, lambda step: (1 - step.agreement) / 0.0001),
        ({"metric_drop": 1e-4}, lambda step: step.metric_drop / 1e-4),
    ],
    ids=["cosine", "error", "agreement", "metric"],
)
def test_what_is_used_is_the_share_of_the_threshold_of_which_most_is_lost(
    try_layers, some, tiny_onnx, allowed, used, monkeypatch
):
    monkeypatch.setattr(checks, "CROSSED", 0)
    samples = some(21)
    answers = run_graph(open_as_written(load_graph(tiny_onnx)), samples.read_at(np.arange(21)))["logits"].argmax(axis=1)
    pairs = zip(samples.manifest.samples, answers.tolist(), strict=True)
    right = tuple(replace(each, label=answer) for each, answer in pairs)
    samples.manifest.model_copy(update={"samples": right}).write(samples.folder / MANIFEST)
    known = SampleSet.open(samples.folder)
    trial = try_layers(always_the_same, samples=known, limits=LOOSE.model_copy(update=allowed))
    step = trial.check([], 0.0)
    assert step.metric_drop == pytest.approx(1 - np.mean(answers[trial.places] == 5))
    assert step.spent == pytest.approx(used(step))


def test_the_first_metric_counts_also_where_less_is_better_of_the_second(try_layers, some, tiny_onnx):
    samples = some(20)
    exact = run_graph(open_as_written(load_graph(tiny_onnx)), samples.read_at(np.arange(20)))
    np.save(samples.folder / TRUTH, exact["logits"])
    step = try_layers(always_the_same, samples=samples, task=task_of("regression", None, ())).check([], 0.0)
    assert step.metric_drop > 0


def test_few_samples_are_looked_at_only_where_far_too_much_or_hardly_anything_is_lost(try_layers, some):
    samples = some(60)
    lost = try_layers(samples=samples, limits=LOOSE).check([], 0.0).relative_error
    for factor, looked_at in ((0.1, FIRST), (0.5, 52), (1.9, 52), (2.1, FIRST)):  # of what the threshold allows
        limits = LOOSE.model_copy(update={"relative_error": lost / factor})
        assert try_layers(limits=limits, samples=samples).check([], 0.0).looked_at == looked_at, factor


def test_errors_that_change_no_answer_of_the_few_are_supposed_to_change_those_of_others(try_layers, some, tiny_onnx):
    samples = some(60)
    noise = np.random.default_rng(0).integers(0, 256, np.load(samples.folder / input_file(0)).shape, np.uint8)
    np.save(samples.folder / input_file(0), noise)
    exact = open_as_written(load_graph(tiny_onnx))
    limits = LOOSE.model_copy(update={"agreement": 0.99})
    places = try_layers(samples=samples, limits=limits).places
    scores = run_graph(exact, samples.read_at(places))["logits"]
    missing = scores.max(axis=1, keepdims=True) - scores  # until a class is the answer
    missing[missing == 0] = np.inf
    first, others = missing[:FIRST].min(axis=0), missing[FIRST:].min(axis=0)
    likely = int(np.argmax(first - others))
    assert first[likely] > others[likely]
    changes_none, changes_others = others[likely] / 2, (others[likely] + first[likely]) / 2
    for amount, looked_at in ((changes_none, FIRST), (changes_others, len(places))):
        error = np.zeros(16, np.float32)
        error[likely] = amount

        def slightly_wrong(spared, error=error):
            return lambda feeds: {"logits": run_graph(exact, feeds)["logits"] + error}

        step = try_layers(slightly_wrong, samples=samples, limits=limits).check([], 0.0)
        assert step.looked_at == looked_at


@pytest.mark.parametrize(("count", "is_seen"), [(28, True), (208, False)])
def test_few_samples_are_judged_with_the_errors_of_others(try_layers, some, tiny_onnx, count, is_seen):
    """An error that makes each sample surer of its answer would change that of another sample."""
    samples = some(count)
    noise = np.random.default_rng(0).integers(0, 256, np.load(samples.folder / input_file(0)).shape, np.uint8)
    np.save(samples.folder / input_file(0), noise)
    exact = open_as_written(load_graph(tiny_onnx))

    def surer(spared):
        def run(feeds):
            scores = run_graph(exact, feeds)["logits"]
            return {"logits": scores + np.ptp(scores) * np.eye(16, dtype=np.float32)[scores.argmax(axis=1)]}

        return run

    limits = LOOSE.model_copy(update={"agreement": 0.99})
    step = try_layers(surer, samples=samples, limits=limits).check([], 0.0)
    assert (step.agreement, step.spent > 1) == (1, is_seen)


def test_answers_that_are_no_numbers_have_no_error_that_others_could_have(try_layers, some):
    numbers, flags = (try_layers(samples=some(60), limits=LOOSE, also_flags=each) for each in (False, True))
    assert [trial.check([], 0.0).looked_at for trial in (numbers, flags)] == [FIRST, 52]


@pytest.mark.parametrize(("batch", "apart"), [(1, 1e-3), (4, 1e-3), (3, 0.5), (16, 0.5)])  # 3 and 16: of more samples
def test_a_graph_of_one_batch_size_is_tried_as_any_other(try_layers, batch, apart):
    free, fixed = try_layers(), try_layers(batch=batch)
    assert fixed.check(["conv1"], 0.0).spent == pytest.approx(free.check(["conv1"], 0.0).spent, rel=1e-3)
    alone, wanted = (dict(trial.losses_alone(["conv1", "conv2"])) for trial in (fixed, free))
    assert alone == pytest.approx(wanted, rel=apart)


def test_no_more_samples_check_than_the_most(try_layers, some):
    assert try_layers(samples=some(60), most=40).checked == 40


def test_one_sample_is_enough_to_try(try_layers, some):
    trial = try_layers(samples=some(1))
    assert (trial.chosen, trial.checked) == (1, 1)


def test_numbers_that_are_none_are_lost(try_layers):
    def not_a_number(spared):
        return lambda feeds: {"logits": np.full((len(feeds["input"]), 16), np.nan, np.float32)}

    assert try_layers(run_with=not_a_number).check([], 0.0).spent == LOST


def test_samples_to_choose_by_have_small_and_large_answers_and_none_of_them_checks(try_layers, samples, tiny_onnx):
    trial = try_layers()
    assert trial.chosen + trial.checked == len(samples)
    exact = run_graph(open_as_written(load_graph(tiny_onnx)), samples.read_at(np.arange(len(samples))))["logits"]
    order = np.argsort(np.linalg.norm(exact, axis=1))
    picked = np.setdiff1d(order, trial.places)
    assert {order[0], order[-1]} <= set(picked)
    assert len(picked) == trial.chosen

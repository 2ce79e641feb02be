from dataclasses import replace

import numpy as np
import onnx
import pytest

from enginewright.core.params.build import Profile, Range, ValidationParams
from enginewright.core.params.precisions import Thresholds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import target_of
from enginewright.graph.as_written import open_as_written, run_as_written, run_graph
from enginewright.measure.agreement import answers_by_chance, metric_of
from enginewright.measure.examples import EXAMPLES, Examples, write_examples
from enginewright.measure.validate import Expected, check_spot, spot_batches, validate_engine
from enginewright.tasks.choose import task_of

SPOTS = ValidationParams(spot_samples=7)
STRICT = Thresholds(cosine=0.9999, relative_error=1e-4, agreement=1, metric_drop=0)


@pytest.mark.parametrize(
    ("profile", "batches"),
    [((1, 8, 16), [1, 7, 16]), ((1, 1, 1), [1]), ((4, 4, 4), [4]), ((1, 2, 2), [1, 2]), ((2, 4, 8), [2, 5, 8])],
)
def test_spots_are_the_smallest_the_largest_and_an_odd_batch_between(profile, batches):
    smallest, tuned, largest = profile
    assert spot_batches(Range(min=smallest, opt=tuned, max=largest)) == batches


@pytest.fixture(scope="module")
def reference(tiny_graph, samples):
    return run_graph(open_as_written(tiny_graph), samples.cycled(len(samples)))


@pytest.fixture(scope="module", params=[(1, 4, 8), (2, 2, 2)], ids=str)
def engine(request, tiny_onnx, machine, build, inference, manifest, tmp_path_factory):
    """An engine with one of two profiles. With 21 samples the last batch of the second is smaller than it accepts."""
    smallest, tuned, largest = request.param
    folder = tmp_path_factory.mktemp("engines") / "fp32"
    chosen = build.model_copy(
        update={
            "profile": Profile(batch=Range(min=smallest, opt=tuned, max=largest)),
            "profiles": ({"batch": Range(min=2, opt=2, max=2)},) if smallest < 2 else (),
        }
    )
    build_engine(DescribedGraph("fp32", tiny_onnx, manifest), target_of(machine, chosen.tensorrt), chosen, folder)
    with open_engine(folder, machine, inference) as opened:
        yield opened


def test_an_engine_that_computes_what_pytorch_does_passes_on_every_sample(engine, tiny_onnx, samples, reference):
    record = validate_engine(engine, run_as_written(tiny_onnx), Expected(samples, reference, STRICT), SPOTS)
    assert record.passed
    assert (record.samples, record.samples_sha256) == (21, samples.list_sha256)
    accuracy = metric_of(task_of("classification"), reference, samples.labels, np.arange(21))
    assert record.main.reference == record.main.engine == accuracy
    assert (record.main.name, record.main.drop) == ("accuracy", 0)
    assert record.main.interval.low < 0 < record.main.interval.high
    assert record.engine_against_pytorch.relative < 1e-5
    assert record.graph_against_pytorch.relative < 1e-6
    tuned = {ranges["batch"].opt for ranges in engine.record.build.profiles}
    assert [spot.batch for spot in record.spots] == sorted({*spot_batches(engine.record.profile.batch), *tuned})
    assert all(spot.samples % spot.batch == 0 for spot in record.spots)


@pytest.mark.parametrize("must_know", [True, False])
def test_a_model_that_knows_nothing_of_the_samples_is_no_proof(
    must_know, engine, tiny_onnx, samples, reference, manifest
):
    """The labels are those of other images, as with classes in another order."""
    others = tuple(replace(sample, label=(sample.label + 1) % 10) for sample in manifest.samples)
    unknown = SampleSet(samples.folder, manifest.model_copy(update={"samples": others}))
    params = SPOTS.model_copy(update={"must_know": must_know})
    by_chance = answers_by_chance(task_of("classification"), reference, unknown.truth)
    expected = Expected(unknown, reference, STRICT, by_chance=by_chance)
    record = validate_engine(engine, run_as_written(tiny_onnx), expected, params)
    assert [line.partition(" is no better")[0] for line in record.broken] == ["PyTorch's own accuracy"] * must_know


def test_without_labels_only_the_accuracy_is_left_out(engine, tiny_onnx, samples, reference, manifest):
    without_labels = tuple(replace(sample, label=None) for sample in manifest.samples)
    unlabeled = SampleSet(samples.folder, manifest.model_copy(update={"samples": without_labels}))
    record = validate_engine(engine, run_as_written(tiny_onnx), Expected(unlabeled, reference, STRICT), SPOTS)
    assert record.passed
    assert {record.main, *(spot.metric for spot in record.spots)} == {None}
    assert (record.agreement.share, record.agreement.interval.high) == (1, 1)


def test_a_loss_breaks_its_threshold_once(engine, tiny_onnx, samples, reference):
    record = validate_engine(
        engine, run_as_written(tiny_onnx), Expected(samples, {"logits": 1.5 * reference["logits"]}, STRICT), SPOTS
    )
    assert record.engine_against_pytorch.relative == pytest.approx(1 / 3, abs=1e-5)
    assert record.broken == ("relative error 3.33e-01 is above 1.00e-04",)
    assert record.loss_comes_from == "precision"


class WrongAtOneBatch:
    """An engine that returns wrong outputs at one batch size, as a broken dynamic shape does."""

    def __init__(self, engine, batch):
        self.record, self._engine, self._batch = engine.record, engine, batch

    def run(self, feeds):
        results = self._engine.run(feeds)
        return {name: array * (1.3 if len(feeds["input"]) == self._batch else 1) for name, array in results.items()}


def test_a_batch_size_that_changes_the_outputs_is_named(engine, tiny_onnx, samples, reference):
    smallest = engine.record.profile.batch.min
    if smallest == engine.record.profile.batch.max:
        pytest.skip("a single batch size cannot differ from itself")
    broken = WrongAtOneBatch(engine, smallest)
    record = validate_engine(broken, run_as_written(tiny_onnx), Expected(samples, reference, STRICT), SPOTS)
    assert record.broken == (f"at batch {smallest} the outputs differ by 3.00e-01 from those of the full set",)


def test_a_set_smaller_than_the_batch_is_repeated(engine, tiny_onnx, samples, reference):
    largest, task = engine.record.profile.batch.max, task_of("classification")
    spot = check_spot(engine, Expected(samples, reference, STRICT), reference, largest, 1, task)
    assert spot.samples == largest
    assert spot.drift < 1e-5


@pytest.fixture(scope="module")
def sized_onnx(tiny_graph, tmp_path_factory):
    """The tiny classifier, which averages over the image, for images of any size."""
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    for number, axis in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[number].dim_param = axis
    path = tmp_path_factory.mktemp("sized") / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def sized(sized_onnx, machine, build, inference, manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines") / "fp32"
    sizes = {"height": Range(min=6, opt=8, max=12), "width": Range(min=8, opt=8, max=10)}
    chosen = build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=4, max=8), **sizes)})
    build_engine(DescribedGraph("fp32", sized_onnx, manifest), target_of(machine, chosen.tensorrt), chosen, folder)
    with open_engine(folder, machine, inference) as opened:
        yield opened


def test_an_engine_is_compared_with_its_graph_at_the_smallest_and_largest_image_size(
    sized, sized_onnx, samples, reference
):
    record = validate_engine(sized, run_as_written(sized_onnx), Expected(samples, reference, STRICT), SPOTS)
    assert record.passed
    assert [check.sizes for check in record.resized] == [{"height": 6, "width": 8}, {"height": 12, "width": 10}]
    assert all(check.errors.relative < 1e-5 for check in record.resized)


def test_an_engine_of_one_image_size_is_compared_at_no_other(engine, tiny_onnx, samples, reference):
    assert validate_engine(engine, run_as_written(tiny_onnx), Expected(samples, reference, STRICT), SPOTS).resized == ()


class WrongOnLargeImages:
    """An engine that returns wrong outputs for large images."""

    def __init__(self, engine, factor):
        self.record, self._engine, self._factor = engine.record, engine, factor

    def run(self, feeds):
        large = feeds["input"].shape[2] == 12
        return {name: array * (self._factor if large else 1) for name, array in self._engine.run(feeds).items()}


@pytest.mark.parametrize(
    ("factor", "sentence"),
    [
        (1.3, "at height 12, width 10 the engine differs by 3.00e-01 from the graph it was made of"),
        (float("nan"), "at height 12, width 10 64 outputs are NaN or infinite"),
    ],
)
def test_an_image_size_that_changes_the_outputs_is_named(sized, sized_onnx, samples, reference, factor, sentence):
    record = validate_engine(
        WrongOnLargeImages(sized, factor), run_as_written(sized_onnx), Expected(samples, reference, STRICT), SPOTS
    )
    assert record.broken == (sentence,)


def test_arrays_that_are_neither_images_nor_texts_have_no_examples(samples, reference, manifest, tmp_path):
    arrays = SampleSet(samples.folder, manifest.model_copy(update={"preprocessing": None}))
    write_examples(task_of("classification"), arrays, reference, reference, tmp_path)
    assert Examples.read(tmp_path / EXAMPLES).examples == ()


def test_examples_say_what_is_the_same_where_answers_can_be(samples, reference, tmp_path):
    others = {name: np.roll(values, 1, axis=1) for name, values in reference.items()}
    for task, got, same in (
        ("classification", reference, 1),
        ("classification", others, 0),
        ("regression", others, None),
    ):
        write_examples(task_of(task, None, ()), samples, reference, got, tmp_path)
        assert {each.same for each in Examples.read(tmp_path / EXAMPLES).examples} == {same}

"""A trial tells what is lost with sets of layers in floating point, on calibration samples."""

import numpy as np
import pytest

from enginery.core.params.precisions import Thresholds
from enginery.graph.onnx_file import load_graph
from enginery.quantization.calibration.measure import measure
from enginery.quantization.write_int8 import Range
from enginery.search.switches import SwitchedGraph
from enginery.search.trial import LOST, Trial
from enginery.tasks.choose import task_of

LIMITS = Thresholds(cosine=0.9, relative_error=0.1, agreement=0.5, metric_drop=0.5)


@pytest.fixture
def try_layers(tiny_onnx, samples):
    graph = load_graph(tiny_onnx)
    ranges = {
        name: Range(each.lowest, each.amax) for name, each in measure(graph, samples.batches(4), bins=2048).items()
    }
    switched = SwitchedGraph(graph, ranges, [], 64)
    task = task_of("classification", None, samples.manifest.class_names)

    def made(run_with=switched.run_with, limits=LIMITS):
        return Trial(graph, switched, run_with, samples, task, limits)

    return made


def test_less_is_lost_the_more_is_spared(try_layers):
    trial = try_layers()
    none, some, every = (
        trial.check(spared, 0.0) for spared in ([], ["conv2"], ["conv1", "conv2", "pool", "classifier"])
    )
    assert none.relative_error > some.relative_error > 1e-4 > every.relative_error
    assert (every.agreement, every.metric_drop) == (1, 0)
    assert none.used >= none.relative_error / LIMITS.relative_error
    assert 0 < trial.loss_alone("conv2") < none.relative_error * 2


def test_the_strictest_threshold_counts(try_layers):
    strict = LIMITS.model_copy(update={"cosine": 1 - 1e-9})
    assert try_layers(limits=strict).check([], 0.0).used > 100 * try_layers().check([], 0.0).used


def test_numbers_that_are_none_are_lost(try_layers):
    def not_a_number(spared):
        return lambda feeds: {"logits": np.full((len(feeds["input"]), 16), np.nan, np.float32)}

    assert try_layers(run_with=not_a_number).check([], 0.0).used == LOST


def test_samples_to_choose_and_to_check_by_are_others(try_layers, samples):
    trial = try_layers()
    assert trial.chosen + trial.checked == len(samples)


def test_every_sample_whose_answer_changes_is_named_with_its_place(try_layers, samples):
    def always_the_same(spared):
        return lambda feeds: {"logits": np.eye(16, dtype=np.float32)[[5] * len(feeds["input"])]}

    trial = try_layers(run_with=always_the_same)
    step = trial.check([], 0.0)
    assert len(step.changed) == round((1 - step.agreement) * step.looked_at) > 0
    names = [sample.name for sample in samples.manifest.samples]
    assert all(names[trial.chosen + place] == name for name, place in step.changed.items())

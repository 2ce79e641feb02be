"""Rescues are tried alone and together, and kept where they help on other samples."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.quantized import KEEP_NOTHING

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import CalibrationParams
from enginewright.data.feeds import save_arrays
from enginewright.graph import data_apart
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.calibration.auto import OutputErrors
from enginewright.precision.calibration.calibrate import calibrate_graph, measure
from enginewright.precision.dialect import dialect_of
from enginewright.precision.in_dialect import Ingredients, open_calibrated, open_rescued
from enginewright.precision.quantize import quantize, set_weights
from enginewright.precision.records import RESCUE, ROUNDED, Rescue, digest_of
from enginewright.precision.rescue import LOST, Attempts, Confirmation, find_rescues

PARAMS = CalibrationParams(method="max", percentile=99.9, bins=2048, batch=8, file=None)
CPU = dialect_of("openvino", "cpu", "avx512_vnni")
EQUALIZE, ROUND, SPARE = ("equalize",), ("round",), ("spare",)
BOTH = EQUALIZE + ROUND


class Known:
    """A trial of graphs whose errors are known: a mean, or a pair with that of all samples at once."""

    sizes = 8, 16

    def __init__(self, errors):
        self.errors = errors

    def loss(self, graph):
        return OutputErrors(*np.broadcast_to(self.errors[graph], 2).tolist())


def judged(errors, named=False):
    """Names of what was done stand in for a rescued graph, and an error of None means that nothing changes."""

    def attempt(name):
        def change(given, _):
            done = *given.graph, name
            return None if errors.get(done, 0) is None else given._replace(graph=done)

        return change

    attempts = {
        name: attempt(name) for name in BOTH + SPARE if name != "spare" or any("spare" in each for each in errors)
    }
    given = Ingredients((), None, {}, CPU, KEEP_NOTHING)
    return find_rescues("int8", given, attempts, named, Known(errors), write=lambda rescued: rescued.graph)


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        ({(): 0.1, EQUALIZE: 0.09, ROUND: 0.08, BOTH: 0.07}, BOTH),
        ({(): 0.1, EQUALIZE: 0.11, ROUND: 0.101, BOTH: 0.08}, BOTH),
        ({(): 0.1, EQUALIZE: 0.09, ROUND: 0.08, BOTH: 0.079}, ROUND),
        ({(): 0.1, EQUALIZE: 0.098, ROUND: 0.099, BOTH: 0.0975}, ()),
        ({(): 0.1, EQUALIZE: None, ROUND: 0.08}, ROUND),
        ({(): 0.1, EQUALIZE: 0.09, ROUND: None, BOTH: None}, EQUALIZE),
        ({(): 0.009, ROUND: 0.008}, ROUND),
        ({(): 0.1, EQUALIZE: (0.05, 0.12), ROUND: (0.08, 0.1), BOTH: (0.07, 0.09)}, BOTH),
        ({(): 0.1, EQUALIZE: (0.05, 0.12), ROUND: (0.08, 0.1), BOTH: (0.06, 0.12)}, ROUND),
        ({(): 0.1, EQUALIZE: 0.09, ROUND: 0.08, BOTH: 0.07, BOTH + SPARE: 0.06}, BOTH + SPARE),
        ({(): 0.1, EQUALIZE: 0.098, ROUND: 0.099, BOTH: 0.0975, SPARE: 0.02}, SPARE),
        ({(): 0.009, ROUND: 0.008, ROUND + SPARE: 0.0079}, ROUND),
        ({(): 0.1, EQUALIZE: float("nan"), ROUND: 0.2, BOTH: 0.2}, ()),
    ],
    ids=[
        "each helps",
        "both help",
        "one is enough",
        "within chance",
        "none to scale",
        "none to round",
        "close: only what is quick",
        "at a price alone",
        "at the price of large outputs",
        "the end, too",
        "the end alone",
        "hardly the end",
        "nan",
    ],
)
def test_the_fewest_that_help_are_kept(errors, kept):
    record, rescued = judged(errors)
    assert record.kept == rescued.graph == kept
    assert {each.names: each.error for each in record.tried} == pytest.approx(
        {names: np.ravel(error)[0] for names, error in errors.items() if names and (error or len(names) == 1)},
        nan_ok=True,
    )


def test_what_is_asked_for_by_name_is_tried_and_must_be_possible():
    close = {(): 0.009, EQUALIZE: 0.005, ROUND: 0.004, BOTH: 0.003}
    assert judged(close, named=True)[0].kept == BOTH
    with pytest.raises(EnginewrightError, match=r"precisions\.int8\.rescue: equalize does not apply to this graph, in"):
        judged({(): 0.1, EQUALIZE: None}, named=True)


@pytest.fixture
def project(tiny_graph, samples, tmp_path):
    """A calibrated graph of which one channel is far larger than the others, and what can be attempted."""
    graph = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    large = np.ones(32, np.float32)
    large[0] = 50
    for tensor in graph.graph.initializer:
        factors = {"w1": large[:, None, None, None], "b1": large, "w2": 1 / large[:, None, None]}.get(tensor.name)
        if factors is not None:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * factors, tensor.name))
    for name in ("simplified", "calibrated", "scratch", "rescued"):
        (tmp_path / name).mkdir()
    onnx.save(graph, tmp_path / "simplified/model.onnx")
    calibrate_graph(tmp_path / "simplified", samples, PARAMS, CPU, None, tmp_path / "calibrated")
    attempts = Attempts("int8", samples, tmp_path / "scratch")
    return attempts, open_calibrated(tmp_path / "simplified", tmp_path / "calibrated", samples, CPU, KEEP_NOTHING)


def eight(attempts):
    feeds = [attempts.samples.cycled(8)]
    return SimpleNamespace(few=feeds, many=lambda: feeds)


def test_both_lower_the_error_and_are_read_as_they_were_written(project, tmp_path):
    attempts, given = project
    trial = Confirmation(load_graph(given.graph), attempts.samples)
    assert trial.sizes == (10, 11)
    assert [len(feeds["input"]) for feeds in Confirmation(load_graph(given.graph), attempts.samples, batch=4).few] == [
        4,
        4,
        2,
    ]
    record, rescued = find_rescues(
        "int8", given, {name: getattr(attempts, name) for name in BOTH}, True, trial, attempts.write
    )
    errors = {tuple(each.names): each.error for each in record.tried}
    assert errors[EQUALIZE] < 0.8 * record.error
    assert errors[BOTH] == min(errors.values())
    assert record.kept == BOTH
    record.write(attempts.folder / RESCUE)
    save_arrays(attempts.folder / ROUNDED, rescued.rounded)
    nowhere = tmp_path / "nowhere"
    read = open_rescued(nowhere, nowhere, attempts.folder, attempts.samples, CPU, KEEP_NOTHING)
    assert attempts.write(read) == attempts.write(rescued)


def test_weights_in_a_file_of_their_own_lose_as_much(project, monkeypatch):
    """Weights in int8 may be few enough for one file and made from more, as those of ViT-H/14 are."""
    attempts, given = project
    trial = Confirmation(load_graph(given.graph), attempts.samples)

    def losses():
        made = given, attempts.round(given, eight(attempts)), attempts.equalize(given, eight(attempts))
        return [trial.loss(attempts.write(each)) for each in made]

    in_one = losses()
    monkeypatch.setattr(
        data_apart, "MOST_BYTES", sum(map(data_apart.bytes_of, load_graph(given.graph).graph.initializer)) - 1
    )
    monkeypatch.setattr(data_apart, "FEWEST_BYTES", 1)
    save_graph(load_graph(given.graph), given.graph)
    assert data_apart.data_of(given.graph).exists()
    assert losses() == in_one


def test_a_graph_that_returns_no_numbers_has_an_error_that_can_be_written(project, tmp_path):
    """Float16 may overflow within a graph for TensorRT. Then the search spares layers."""
    attempts, given = project
    lost = load_graph(given.graph)
    for tensor in lost.graph.initializer:
        if tensor.name == "b1":
            tensor.CopyFrom(numpy_helper.from_array(np.full(32, np.nan, np.float32), "b1"))
    record, _ = find_rescues(
        "int8", given, {}, False, Confirmation(load_graph(given.graph), attempts.samples), write=lambda _: lost
    )
    record.write(tmp_path / RESCUE)
    assert Rescue.read(tmp_path / RESCUE).error == LOST


def test_what_was_rescued_has_a_name_by_content(tmp_path):
    names = []
    for error, rounded in ((0.1, {}), (0.2, {}), (0.2, {"w": np.ones(2, np.int8)}), (0.2, {"w": np.ones(2, np.int8)})):
        record = Rescue(precision="int8", samples=(1, 1), error=error, at_once=error, tried=(), kept=(), enough=None)
        record.write(tmp_path / RESCUE)
        if rounded:
            save_arrays(tmp_path / ROUNDED, rounded)
        names.append(digest_of(tmp_path))
    assert len(set(names)) == 3
    assert names[2] == names[3]


def test_rounded_weights_alone_leave_graph_and_ranges(project, tmp_path):
    attempts, given = project
    rounded = attempts.round(given, eight(attempts))
    save_arrays(tmp_path / "rescued" / ROUNDED, rounded.rounded)
    numbers = {"samples": (8, 8), "error": 0.2, "at_once": 0.2, "tried": (), "enough": None}
    record = Rescue(precision="int8", kept=("round", "spare"), spared=("classifier",), **numbers)
    record.write(tmp_path / "rescued" / RESCUE)
    read = open_rescued(
        tmp_path / "simplified", tmp_path / "calibrated", tmp_path / "rescued", attempts.samples, CPU, KEEP_NOTHING
    )
    assert read.graph == given.graph
    assert read.ranges == given.ranges
    assert read.spared == ("classifier",)
    assert all(np.array_equal(read.rounded[name], array) for name, array in rounded.rounded.items())
    assert read.rounded.keys() == rounded.rounded.keys() == {"w1", "w2", "w3"}


def test_tensorrt_gets_the_same_bytes(project):
    attempts, given = project
    rescued = attempts.round(given, eight(attempts))
    graph = set_weights(
        quantize(given.graph, "int8", given.ranges.amax, KEEP_NOTHING, "fp16"), 127, rescued.rounded
    ).graph
    constants = {tensor.name: numpy_helper.to_array(tensor).astype(np.float32) for tensor in graph.initializer}
    read = [node.input for node in graph.node if node.input[0] in rescued.rounded]
    assert {weights for weights, *_ in read} == {"w1", "w2", "w3"}
    for weights, scales, _ in read:
        array = constants[weights]
        steps = constants[scales].reshape(-1, *[1] * (array.ndim - 1))
        assert np.array_equal(np.rint(array / steps), rescued.rounded[weights])


def test_what_is_known_of_the_equalized_graph_is_what_would_be_measured(project):
    attempts, given = project
    after = attempts.equalize(
        given, SimpleNamespace(few=[attempts.samples.cycled(8)], many=lambda: attempts.samples.batches(8))
    )
    found = measure(load_graph(after.graph), attempts.samples.batches(8), PARAMS.bins)
    assert after.ranges.amax == pytest.approx({name: each.amax for name, each in found.items()}, rel=1e-3)
    assert after.ranges.lowest == pytest.approx({name: each.lowest for name, each in found.items()}, rel=1e-3, abs=1e-6)
    assert after.ranges.amax != pytest.approx(given.ranges.amax, rel=1e-3)
    assert open_calibrated(attempts.folder, attempts.folder, attempts.samples, CPU, KEEP_NOTHING).ranges == after.ranges


def test_ranges_from_elsewhere_do_not_say_what_is_negative(project):
    attempts, given = project
    ranges = given.ranges.model_copy(update={"source": "data/calibration/given.cache"})
    assert attempts.equalize(given._replace(ranges=ranges), eight(attempts)) is None

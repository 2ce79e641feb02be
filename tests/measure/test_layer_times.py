import statistics
import time

import numpy as np
import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.engine.engine import open_engine
from enginewright.engine.record import EngineRecord, Layer
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.engine.runtimes.runtime import median_times
from enginewright.measure.benchmark import TRACED_CALLS, trace_engine


@pytest.fixture(scope="module", params=["openvino", "onnxruntime"])
def machine(request):
    return describe_machine(request.param)


@pytest.fixture(scope="module")
def trace(built, machine, inference, samples):
    return trace_engine(built, machine, inference, samples)


@pytest.fixture
def trace_calls(monkeypatch, machine):
    """The arguments of each call of the runtime's `trace`, which returns no layers."""
    calls = []
    monkeypatch.setattr(type(load_runtime(machine.runtime)), "trace", lambda _, *given: calls.append(given) or [])
    return calls


def layer(name, precision="fp32"):
    return Layer(name=name, kind="Convolution", precision=precision, computes=True)


def test_a_trace_has_the_layers_of_the_engine_under_their_names(trace, built):
    layers = EngineRecord.read(built / "engine.json").layers
    assert [Layer(**one.model_dump(exclude={"milliseconds"})) for one in trace.layers] == list(layers)


def test_the_layer_with_most_arithmetic_takes_most_time(trace):
    """The second convolution has ten times the arithmetic of the first; the classifier may take no microsecond."""
    first, second, classifier = [one.milliseconds for one in trace.layers if one.computes]
    assert second == max(one.milliseconds for one in trace.layers)
    assert second > first > classifier >= 0


def test_all_layers_together_take_about_as_long_as_a_call(trace, built, machine, inference, samples):
    with open_engine(built, machine, inference) as engine:
        call, milliseconds = engine.bind(samples.cycled(trace.batch)), []
        for _ in range(200):
            started = time.perf_counter()
            call()
            milliseconds.append((time.perf_counter() - started) * 1000)
    assert 0.2 < trace.milliseconds / statistics.median(milliseconds) < 3


def test_real_samples_are_traced_at_the_batch_that_the_engine_is_tuned_for(
    built, machine, inference, samples, build, trace_calls
):
    trace = trace_engine(built, machine, inference, samples)
    ((folder, blueprint, how, feeds, calls),) = trace_calls
    assert (folder, blueprint.build, how, calls) == (built, build, inference, TRACED_CALLS)
    assert blueprint.interface == EngineRecord.read(built / "engine.json").interface
    assert np.array_equal(feeds["input"], samples.cycled(4)["input"])
    assert (trace.precision, trace.batch, trace.calls) == ("fp32", 4, TRACED_CALLS)


def test_a_runtime_without_times_leaves_an_empty_trace(built, machine, inference, samples, monkeypatch):
    untimed = median_times([layer("conv1")], [])
    monkeypatch.setattr(type(load_runtime(machine.runtime)), "trace", lambda _, *given: untimed)
    assert trace_engine(built, machine, inference, samples).layers == ()


def test_tracing_changes_no_file_and_slows_no_other_session(trace, built, machine, inference):
    record = EngineRecord.read(built / "engine.json")
    assert {path.name for path in built.iterdir()} == {"engine.json", *record.files}
    assert record.files == {name: sha256(built / name) for name in record.files}
    with open_engine(built, machine, inference) as engine:
        if machine.runtime == "openvino":
            assert engine._session._compiled.get_property("PERF_COUNT") == "NO"
        else:
            assert not engine._session._session.get_session_options().enable_profiling


def test_a_damaged_engine_is_refused_before_it_is_loaded(built, machine, inference, samples, tmp_path, trace_calls):
    (name,) = EngineRecord.read(built / "engine.json").files
    for path in built.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes()[: -1 if path.name == name else None])
    with pytest.raises(EnginewrightError, match=f"{name} is damaged"):
        trace_engine(tmp_path, machine, inference, samples)
    assert trace_calls == []


def test_an_engine_that_cannot_run_here_is_refused(built, machine, inference, samples, trace_calls):
    elsewhere = machine.model_copy(update={"device_name": "another processor"})
    with pytest.raises(EnginewrightError, match="was built for another machine: device_name"):
        trace_engine(built, elsewhere, inference, samples)
    assert trace_calls == []


def test_the_time_of_a_layer_is_the_median_over_the_calls():
    calls = [[("conv1", 1.0), ("conv2", 5.0)], [("conv1", 2.0), ("conv2", 6.0)], [("conv1", 9.0), ("conv2", 7.0)]]
    assert [(one.name, one.milliseconds) for one in median_times([layer("conv2"), layer("conv1")], calls)] == [
        ("conv2", 6.0),
        ("conv1", 2.0),
    ]


def test_layers_with_the_same_name_get_their_times_in_order():
    layers = [layer("copy", "fp32"), layer("conv1"), layer("copy", "int8")]
    found = median_times(layers, [[("copy", 1.0), ("conv1", 3.0), ("copy", 2.0)]] * 3)
    assert [(one.precision, one.milliseconds) for one in found] == [("fp32", 1.0), ("fp32", 3.0), ("int8", 2.0)]


def test_a_layer_that_did_not_run_has_no_time_and_an_undescribed_one_is_unknown():
    found = median_times([layer("reshape")], [[("__myl_Conv", 1.5)]])
    assert [(one.name, one.precision, one.computes, one.milliseconds) for one in found] == [
        ("reshape", "fp32", True, 0.0),
        ("__myl_Conv", "unknown", False, 1.5),
    ]

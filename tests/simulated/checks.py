"""Hold the simulation against the real bindings: tests/engine/test_simulation.py runs this for each version."""

import ctypes
import gc
import json
import os
import warnings

import numpy as np
import onnx
import pytest
import tensorrt as trt
from cuda.bindings import runtime as cudart
from onnx import helper

from enginewright.core.params.precisions import Keep
from enginewright.graph.as_written import float32_twin, open_as_written, run_graph
from enginewright.graph.onnx_file import save_graph
from enginewright.precision.cast import cast
from simulated.surface import Simulated
from simulated.tensorrt import with_version

STRONGLY_TYPED = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
REAL = trt.ITensor._real.__module__
HAS_READERS = hasattr(trt, "IStreamReaderV2")
with_readers = pytest.mark.skipif(not HAS_READERS, reason="came with TensorRT 10.7")


class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
        self.lines = []

    def log(self, severity, text):
        self.lines.append((severity, text))

    def errors(self):
        return "\n".join(text for severity, text in self.lines if severity == trt.ILogger.ERROR)


class Reader(trt.IStreamReaderV2 if HAS_READERS else object):
    def __init__(self, content, most=100_000):
        trt.IStreamReaderV2.__init__(self)
        self.content, self.position, self.most, self.asked = content, 0, most, []

    def read(self, size, stream):
        self.asked.append((size, stream))
        start, self.position = self.position, self.position + min(size, self.most)
        return self.content[start : self.position]

    def seek(self, offset, whence):
        assert isinstance(whence, trt.SeekPosition)
        self.position = offset
        return True


class Allocator(trt.IOutputAllocator):
    def __init__(self, allocate):
        trt.IOutputAllocator.__init__(self)
        self.allocate, self.asked, self.shapes = allocate, [], []

    def reallocate_output_async(self, tensor_name, memory, size, alignment, stream):
        self.asked.append((tensor_name, memory, size, alignment, stream))
        return self.allocate(size)

    def notify_shape(self, tensor_name, shape):
        self.shapes.append((tensor_name, tuple(shape)))


class Monitor(trt.IProgressMonitor):
    """Asks the builder to stop, at each step."""

    def __init__(self):
        trt.IProgressMonitor.__init__(self)
        self.phases, self.steps = [], []

    def phase_start(self, phase_name, parent_phase, num_steps):
        self.phases.append((phase_name, parent_phase, num_steps))

    def step_complete(self, phase_name, step):
        self.steps.append((phase_name, step))
        return False

    def phase_finish(self, phase_name):
        self.phases.append(phase_name)


class Profiler(trt.IProfiler):
    def __init__(self):
        trt.IProfiler.__init__(self)
        self.times = []

    def report_layer_time(self, layer_name, ms):
        self.times.append((layer_name, ms))


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def fail(monkeypatch):
    return lambda what: monkeypatch.setenv("SIMULATED_FAILURE", what)


@pytest.fixture
def plan(tiny_onnx, log):
    return build(tiny_onnx, log)


@pytest.fixture
def device():
    """Make a stream and a function that allocates memory, which is freed at the end."""
    (_, stream), blocks = cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking), []

    def allocate(size):
        _, address = cudart.cudaMalloc(size)
        blocks.append(address)
        return address

    yield stream, allocate
    for address in blocks:
        cudart.cudaFree(address)
    cudart.cudaStreamDestroy(stream)
    gc.collect()
    assert not any(cudart.allocated().values())


def parse(onnx_path, log, flags=STRONGLY_TYPED):
    builder = trt.Builder(log)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, log)
    return builder, network, parser, parser.parse_from_file(str(onnx_path))


def build(onnx_path, log, batches=(2, 4, 8), change=lambda config: None, more=(), **how):
    builder, network, parser, parsed = parse(onnx_path, log, **how)
    assert parsed
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    tensor = network.get_input(0)
    for sizes in (batches, *more):
        profile = builder.create_optimization_profile()
        profile.set_shape(tensor.name, *((batch, *tensor.shape[1:]) for batch in sizes))
        config.add_optimization_profile(profile)
    change(config)
    plan = builder.build_serialized_network(network, config)
    del parser
    return plan


def described_engine(plan, log, shaped=True):
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    inspector, context = engine.create_engine_inspector(), engine.create_execution_context()
    if shaped:
        context.set_input_shape("input", (4, 3, 8, 8))
        inspector.execution_context = context
    return json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def layers(plan, log, shaped=True):
    return {layer["Name"]: layer for layer in described_engine(plan, log, shaped)["Layers"]}


def execute(plan, log, images, device, **attributes):
    """Run one inference through device memory, and return the outputs before and after the stream is waited for."""
    stream, allocate = device
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    for name, value in attributes.items():
        setattr(context, name, value)
    given, made = allocate(images.nbytes), allocate(len(images) * 16 * 4)
    at(given, images.shape)[...] = images  # the simulated device's memory is the host's
    assert context.set_input_shape("input", images.shape)
    assert context.set_tensor_address("input", given)
    assert context.set_tensor_address("logits", made)
    shape = tuple(context.get_tensor_shape("logits"))
    assert context.execute_async_v3(int(stream)), log.errors()
    before = at(made, shape).copy()
    (status,) = cudart.cudaStreamSynchronize(stream)
    assert not int(status)
    return before, at(made, shape).copy()


def at(address, shape):
    return np.frombuffer((ctypes.c_ubyte * (4 * int(np.prod(shape)))).from_address(address), np.float32).reshape(shape)


def images(batch):
    return np.random.default_rng(batch).normal(0, 1, (batch, 3, 8, 8)).astype(np.float32)


def test_the_version_is_that_of_the_real_bindings():
    assert trt.__version__.startswith(os.environ["SIMULATED_TENSORRT"] + ".")
    assert trt.DataType.__module__ == REAL


def test_the_real_classes_have_all_that_the_simulation_has():
    assert len(Simulated._classes) > 12
    for name, simulated in Simulated._classes.items():
        real = getattr(__import__("tensorrt_bindings"), name)
        assert real.__module__ == REAL
        offered = {member for member in vars(simulated) if not member.startswith("_")}
        assert offered <= set(dir(real)), name


def test_a_class_with_an_invented_method_cannot_be_made():
    with pytest.raises(AttributeError, match="the real Builder has no such build_quickly"):

        class Builder(Simulated, real=trt.Builder._real):
            def build_quickly(self):
                """There is no such thing."""


def test_a_method_cannot_stand_for_a_property():
    with pytest.raises(AttributeError, match="the real ITensor has no such shape"):

        class ITensor(Simulated, real=trt.ITensor._real):
            def shape(self):
                """The real one is a property."""


@pytest.mark.parametrize(
    "call",
    [
        lambda builder, network: builder.create_network(flag=1),
        lambda builder, network: builder.create_network(1, 2),
        lambda builder, network: builder.create_network("explicit"),
        lambda builder, network: builder.build_serialized_network(network),
        lambda builder, network: builder.build_serialized_network(None, builder.create_builder_config()),
        lambda builder, network: network.get_input("input"),
        lambda builder, network: builder.create_optimization_profile().set_shape("input", 1, 2, 3),
        lambda builder, network: builder.create_optimization_profile().set_shape("input", (1.5,), (2,), (3,)),
        lambda builder, network: builder.create_builder_config().set_flag(6),
        lambda builder, network: builder.create_builder_config().create_timing_cache(None),
        lambda builder, network: setattr(builder.create_builder_config(), "builder_optimization_level", "high"),
        lambda builder, network: trt.Builder(),
        lambda builder, network: trt.Builder(print),
        lambda builder, network: trt.ICudaEngine(),
    ],
)
def test_a_call_that_pybind_would_refuse_is_refused(call, tiny_onnx, log):
    builder, network, _parser, _ = parse(tiny_onnx, log)
    with pytest.raises(TypeError):
        call(builder, network)


def test_attributes_that_do_not_exist_or_cannot_be_set_are_refused(tiny_onnx, log):
    builder, network, _parser, _ = parse(tiny_onnx, log)
    for wrong in (
        lambda: setattr(builder.create_builder_config(), "max_workspace_size", 1),
        lambda: setattr(network, "num_inputs", 2),
        lambda: network.inputs,
        lambda: build(tiny_onnx, log).append(1),
    ):
        with pytest.raises(AttributeError):
            wrong()
    with pytest.raises(AttributeError, match="the simulation lacks"):
        network.add_identity  # noqa: B018


def test_names_and_defaults_are_those_of_the_real_signature(tiny_onnx, log):
    builder, network, _parser, _ = parse(tiny_onnx, log)
    config = builder.create_builder_config()
    assert builder.build_serialized_network(config=config, network=network) is None
    assert "no optimization profile has been defined" in log.errors()


def test_tensors_are_described_with_real_types(tiny_onnx, log):
    _, network, _parser, _ = parse(tiny_onnx, log)
    tensor = network.get_input(0)
    assert (network.num_inputs, network.num_outputs) == (1, 1)
    assert (tensor.name, tensor.dtype, tensor.is_shape_tensor) == ("input", trt.DataType.FLOAT, False)
    assert type(tensor.shape) is trt.Dims
    assert tuple(tensor.shape) == (-1, 3, 8, 8)


def test_a_file_that_is_not_onnx_is_refused(tmp_path, log):
    (tmp_path / "broken.onnx").write_bytes(b"nonsense")
    for path, code in {"broken.onnx": "MODEL_DESERIALIZE_FAILED", "none.onnx": "INVALID_VALUE"}.items():
        _, _, parser, parsed = parse(tmp_path / path, log)
        assert not parsed
        assert parser.get_error(0).code() == getattr(trt.ErrorCode, code)


def test_an_unknown_operator_is_refused_by_name(tiny_graph, tmp_path, log):
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    model.graph.node.insert(0, helper.make_node("Frobnicate", ["input"], ["x"], "frob"))
    onnx.save(model, tmp_path / "model.onnx")
    _, _, parser, parsed = parse(tmp_path / "model.onnx", log)
    assert (parsed, parser.num_errors) == (False, 1)
    error = parser.get_error(0)
    assert (error.node_name(), error.node_operator()) == ("frob", "Frobnicate")
    assert "Plugin not found" in error.desc()


def test_an_operator_that_is_a_plugin_needs_the_plugins_registered(plugin_onnx, log, monkeypatch):
    monkeypatch.setitem(trt._registry, "plugins", False)
    _, _, parser, parsed = parse(plugin_onnx, log)
    assert (parsed, parser.get_error(0).node_operator()) == (False, "ScatterElements")
    with pytest.raises(TypeError):
        trt.init_libnvinfer_plugins("no logger", "")
    assert trt.init_libnvinfer_plugins(log, "")
    plan = build(plugin_onnx, log)
    monkeypatch.setitem(trt._registry, "plugins", False)
    assert trt.Runtime(log).deserialize_cuda_engine(plan) is None
    assert "IPluginCreator not found in Plugin Registry" in log.errors()


def test_a_profile_out_of_order_is_refused(tiny_onnx, log):
    assert build(tiny_onnx, log, batches=(4, 2, 8)) is None
    assert "MIN<=OPT<=MAX" in log.errors()


def test_a_fixed_batch_needs_a_profile_of_its_own(tiny_graph, tmp_path, log):
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, tmp_path / "model.onnx")
    assert build(tmp_path / "model.onnx", log) is None
    assert "static dimensions" in log.errors()


def test_building_without_the_parser_is_seen(tiny_onnx, log):
    builder, network, parser, _ = parse(tiny_onnx, log)
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("input", *[(4, 3, 8, 8)] * 3)
    config.add_optimization_profile(profile)
    del parser
    with pytest.raises(RuntimeError, match="gone with its parser"):
        builder.build_serialized_network(network, config)


def test_a_plan_is_a_buffer_and_nothing_more(plan, tmp_path):
    (tmp_path / "plan").write_bytes(plan)
    assert (tmp_path / "plan").read_bytes() == bytes(plan) == bytes(memoryview(plan))
    assert plan.nbytes == len(bytes(plan))
    assert plan
    with pytest.raises(TypeError):
        len(plan)


def test_the_builder_need_not_listen_to_a_monitor_that_asks_it_to_stop(tiny_onnx, log):
    monitor = Monitor()
    assert build(tiny_onnx, log, change=lambda config: setattr(config, "progress_monitor", monitor))
    (whole, _, _), (inner, parent, count), *finished = monitor.phases
    assert (parent, finished) == (whole, [inner, whole])
    assert monitor.steps == [*((inner, step) for step in range(count)), (whole, 0)]


def test_the_timing_cache_grows_and_merges(tiny_onnx, log):
    caches = []

    def with_cache(config):
        cache = config.create_timing_cache(bytes(caches[-1].serialize()) if caches else b"")
        assert config.set_timing_cache(cache, ignore_mismatch=False)
        caches.append(cache)

    for _ in range(2):
        build(tiny_onnx, log, change=with_cache)
    assert caches[0].serialize().nbytes > 10
    assert caches[1].combine(caches[0], ignore_mismatch=False)
    assert bytes(caches[1].serialize()) == bytes(caches[0].serialize())


def test_a_damaged_timing_cache_is_an_empty_one_and_a_warning(log):
    cache = trt.Builder(log).create_builder_config().create_timing_cache(b"nonsense")
    assert isinstance(cache, trt.ITimingCache)
    assert (trt.ILogger.WARNING, "The timing cache will not be used!") in log.lines


@with_readers
def test_a_reader_is_asked_as_the_real_bindings_ask(plan, log):
    reader = Reader(bytes(plan), most=10_000)
    assert trt.Runtime(log).deserialize_cuda_engine(reader)
    assert reader.asked[0] == (4, 0)
    assert len(reader.asked) > 5  # again for what is left, until it has all


@with_readers
def test_a_wrong_result_of_a_reader_ends_the_reading(plan, log, capfd):
    reader = Reader(bytes(plan))
    reader.read = lambda size, stream: None
    assert trt.Runtime(log).deserialize_cuda_engine(reader) is None
    assert "Magic tag does not match" in log.errors()
    assert "not an instance of 'buffer'" in capfd.readouterr().err


def test_a_truncated_plan_is_refused(plan, log, capfd):
    if HAS_READERS:
        assert trt.Runtime(log).deserialize_cuda_engine(Reader(bytes(plan)[:-10])) is None
    assert trt.Runtime(log).deserialize_cuda_engine(bytes(plan)[:-10]) is None
    assert "Serialization assertion" in log.errors()


def test_a_plan_of_another_version_is_refused(plan, log):
    changed = bytes(plan).replace(trt.__version__.encode(), b"9" * len(trt.__version__))
    assert trt.Runtime(log).deserialize_cuda_engine(changed) is None
    assert "Version tag does not match" in log.errors()


def test_a_version_compatible_plan_needs_permission_to_run_its_code(tiny_onnx, log):
    plan = build(tiny_onnx, log, change=lambda config: config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE))
    plan = with_version(bytes(plan), "10.0.1.6")
    runtime = trt.Runtime(log)
    assert runtime.deserialize_cuda_engine(plan) is None
    runtime.engine_host_code_allowed = True
    assert runtime.deserialize_cuda_engine(plan)
    assert runtime.deserialize_cuda_engine(with_version(plan, "99.0.0.1")) is None


def test_a_version_compatible_plan_needs_the_lean_runtime_or_leaves_it_out(tiny_onnx, log, fail):
    fail("no_lean_runtime")
    assert build(tiny_onnx, log)
    flags, wanted = trt.BuilderFlag, [trt.BuilderFlag.VERSION_COMPATIBLE]
    assert build(tiny_onnx, log, change=lambda config: [*map(config.set_flag, wanted)]) is None
    assert "Unable to load library: libnvinfer_lean.so." in log.errors()
    wanted.append(flags.EXCLUDE_LEAN_RUNTIME)
    assert build(tiny_onnx, log, change=lambda config: [*map(config.set_flag, wanted)])


def refitted(plan, log, onnx_path):
    """Put weights into an engine, and return it and whether each of the two steps succeeded."""
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    refitter = trt.Refitter(engine, log)
    parser = trt.OnnxParserRefitter(refitter, log)
    return engine, parser.refit_from_file(str(onnx_path)), refitter.refit_cuda_engine()


@pytest.mark.parametrize("flags", [("STRIP_PLAN",), ("STRIP_PLAN", "REFIT"), ("REFIT",)], ids=" ".join)
def test_weights_can_be_put_in_if_the_builder_was_told_so(flags, tiny_onnx, tmp_path, log, device, plan):
    made = build(tiny_onnx, log, change=lambda config: [config.set_flag(getattr(trt.BuilderFlag, f)) for f in flags])
    weights = onnx.load(tiny_onnx).graph.initializer[0].raw_data
    assert (weights in bytes(made)) == ("STRIP_PLAN" not in flags)
    assert (made.nbytes > plan.nbytes + 10_000) == ("STRIP_PLAN" in flags)  # kernels outweigh such small weights
    meant = run_graph(open_as_written(onnx.load(tiny_onnx)), {"input": images(4)})["logits"]
    _, as_built = execute(made, log, images(4), device)
    assert np.array_equal(as_built, meant) == ("STRIP_PLAN" not in flags)
    engine, read, put_in = refitted(made, log, tiny_onnx)
    assert (engine.refittable, read, put_in) == (True, True, True)
    settings = engine.create_serialization_config()
    settings.clear_flag(trt.SerializationFlag.EXCLUDE_WEIGHTS)
    whole = engine.serialize_with_config(settings)
    assert np.array_equal(execute(whole, log, images(4), device)[1], meant)
    other = onnx.load(tiny_onnx)
    other.graph.initializer[0].name = other.graph.node[0].input[1] = "renamed"
    onnx.save(other, tmp_path / "other.onnx")
    _, read, put_in = refitted(made, log, tmp_path / "other.onnx")
    assert (read, put_in) == (False, False)
    with pytest.raises(TypeError):
        trt.Refitter(trt.Runtime(log).deserialize_cuda_engine(plan), log)


def test_streamed_weights_take_as_much_of_the_device_as_the_budget_says(tiny_onnx, log, monkeypatch, plan):
    flag = trt.BuilderFlag.WEIGHT_STREAMING
    streamed = build(tiny_onnx, log, change=lambda config: config.set_flag(flag))
    assert trt.Runtime(log).deserialize_cuda_engine(plan).streamable_weights_size == 0
    engine = trt.Runtime(log).deserialize_cuda_engine(streamed)
    size = engine.streamable_weights_size
    assert size == engine.weight_streaming_budget_v2 > 30_000
    monkeypatch.setenv("SIMULATED_MEMORY", str(size // 2))
    engine.weight_streaming_budget_v2 = size
    assert "out of memory" in log.errors()
    engine.weight_streaming_budget_v2 = 0
    assert engine.device_memory_size_v2 > engine.weight_streaming_scratch_memory_size > 0
    monkeypatch.delenv("SIMULATED_MEMORY")
    context = engine.create_execution_context()
    engine.weight_streaming_budget_v2 = 100
    assert engine.weight_streaming_budget_v2 == 0  # there is a context
    del context
    engine.weight_streaming_budget_v2 = 100
    assert engine.weight_streaming_budget_v2 == 100
    monkeypatch.setattr(cudart, "cudaMemGetInfo", lambda: (0, 3 << 30, 4 << 30))
    monkeypatch.setattr(type(engine), "streamable_weights_size", 1 << 40)
    monkeypatch.setattr(engine, "_streamable", 1 << 40)
    assert engine.get_weight_streaming_automatic_budget() < 0  # the bindings return 32 bits


def test_an_engine_describes_its_tensors_and_profile(plan, log):
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    assert names == ["input", "logits"]
    assert [engine.get_tensor_mode(name) for name in names] == [trt.TensorIOMode.INPUT, trt.TensorIOMode.OUTPUT]
    assert tuple(engine.get_tensor_shape("logits")) == (-1, 16)
    assert engine.get_tensor_dtype("logits") == trt.DataType.FLOAT
    assert [next(iter(shape)) for shape in engine.get_tensor_profile_shape("input", 0)] == [2, 4, 8]
    assert engine.num_optimization_profiles == 1
    assert engine.device_memory_size_v2 > 0


def test_a_context_is_in_one_profile_at_a_time_and_forgets_the_shapes_of_the_last(tiny_onnx, log, device):
    (stream, allocate), plan = device, build(tiny_onnx, log, more=[(1, 1, 1)])
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    assert engine.num_optimization_profiles == 2
    assert [next(iter(shape)) for shape in engine.get_tensor_profile_shape("input", 1)] == [1, 1, 1]
    context, inspector = engine.create_execution_context(), engine.create_engine_inspector()
    assert context.active_optimization_profile == 0
    assert not context.set_input_shape("input", (1, 3, 8, 8))
    assert context.set_input_shape("input", (4, 3, 8, 8))
    assert not context.set_optimization_profile_async(2, int(stream))
    assert context.set_optimization_profile_async(1, int(stream))
    assert (context.active_optimization_profile, context.infer_shapes()) == (1, ["input"])
    assert not context.set_input_shape("input", (4, 3, 8, 8))
    assert context.set_input_shape("input", (1, 3, 8, 8))
    inspector.execution_context = context
    one = inspector.get_layer_information(engine.num_layers - 1, trt.LayerInformationFormat.JSON)
    assert json.loads(one)["Name"].endswith(" [profile 1]")
    whole = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    if trt.__version__.startswith(("10.3.", "10.6.")):
        assert whole == ""
    else:
        described = json.loads(whole)
        assert [each["Name"] for each in described["Layers"]][-1] == json.loads(one)["Name"]
    if trt.__version__.startswith("10.16."):
        assert described["Bindings"] == ["input", "logits", "input [profile 1]", "logits [profile 1]"]
    elif whole:
        assert [len(tensor["ProfileInfo"]) for tensor in described["I/O Tensors"]] == [2, 2]
    _, other = cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking)
    for name in ("input", "logits"):
        context.set_tensor_address(name, allocate(1024))
    with pytest.raises(RuntimeError, match="the profile was set on another stream"):
        context.execute_async_v3(int(other))
    cudart.cudaStreamDestroy(other)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_computes_what_the_graph_means_and_not_before_the_stream_is_waited_for(
    precision, tiny_onnx, tmp_path, log, device
):
    graph = onnx.load(tiny_onnx) if precision == "fp32" else cast(tiny_onnx, "bf16", Keep(op_types=(), nodes=()))
    save_graph(graph, tmp_path / "model.onnx")
    before, after = execute(build(tmp_path / "model.onnx", log), log, images(5), device)
    session = open_as_written(float32_twin(graph) if precision == "bf16" else graph)
    meant = run_graph(session, {"input": images(5)})["logits"]
    assert not np.allclose(before, meant)
    assert np.array_equal(after, meant)


@pytest.mark.parametrize("count", [3, 0])
def test_an_output_whose_size_follows_from_values_is_allocated_by_the_user(
    count, chosen_onnx, chosen_feeds, log, device
):
    stream, allocate = device
    context = trt.Runtime(log).deserialize_cuda_engine(build(chosen_onnx, log)).create_execution_context()
    numbers = chosen_feeds(4, count)["numbers"]
    given = allocate(numbers.nbytes)
    at(given, numbers.shape)[...] = numbers
    assert context.set_input_shape("numbers", numbers.shape)
    assert [tuple(context.get_tensor_shape(name)) for name in ("others", "largest")] == [(4, 6), (4, -1)]
    assert context.set_tensor_address("numbers", given)
    assert context.set_tensor_address("others", allocate(4 * 6 * 4))
    assert not context.execute_async_v3(int(stream))
    assert "Address is not set for largest" in log.errors()
    blocks = []
    allocator = Allocator(lambda size: blocks.append(allocate(max(size, 1))) or blocks[-1])
    assert not context.set_output_allocator("numbers", allocator)
    assert context.set_output_allocator("largest", allocator)
    assert context.execute_async_v3(int(stream))
    # The shape is known when the call returns, the values once the stream was waited for. A size of 0 needs an address.
    assert allocator.asked == [("largest", 0, 4 * count * 4, 256, int(stream))]
    assert allocator.shapes == [("largest", (4, count))]
    cudart.cudaStreamSynchronize(stream)
    assert np.array_equal(at(blocks[0], (4, count)), -np.sort(-numbers, axis=1)[:, :count])
    cudart.cudaStreamBeginCapture(stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
    assert not context.execute_async_v3(int(stream))
    cudart.cudaStreamEndCapture(stream)
    cudart.cudaGetLastError()
    for failure in (lambda size: None, lambda size: 1 / 0):  # the bindings catch what is raised, and return null
        allocator.allocate = failure
        assert not context.execute_async_v3(int(stream))
    assert "OutOfMemory" in log.errors()


def test_an_input_that_holds_sizes_is_read_from_the_host_when_it_is_run(sized_onnx, log, device):
    """NvInferRuntime.h: its address is one of the host's, and outputs have no shape before it is set."""
    builder, network, parser, _ = parse(sized_onnx, log)
    assert [network.get_input(n).is_shape_tensor for n in range(2)] == [False, True]
    profile, config = builder.create_optimization_profile(), builder.create_builder_config()
    profile.set_shape("image", (1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8))
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is None
    assert "profile 0 is missing values for shape input tensor sizes" in log.errors()
    profile.set_shape_input("sizes", [4, 4], [6, 6], [16, 16])
    plan = builder.build_serialized_network(network, config)
    del parser
    (stream, allocate), engine = device, trt.Runtime(log).deserialize_cuda_engine(plan)
    assert engine.is_shape_inference_io("sizes")
    assert engine.get_tensor_location("sizes") == trt.TensorLocation.HOST != engine.get_tensor_location("image")
    context, sizes = engine.create_execution_context(), np.array([5, 7])
    context.set_input_shape("image", (2, 3, 8, 8))
    assert context.infer_shapes() == ["sizes"]
    context.set_tensor_address("sizes", sizes.ctypes.data)
    assert tuple(context.get_tensor_shape("map")) == (2, 3, 10, 14)
    for name in ("image", "map"):
        context.set_tensor_address(name, allocate(100_000))
    assert context.execute_async_v3(stream)
    sizes[1] = 17
    assert not context.execute_async_v3(stream)
    assert "out of profile" in log.errors()
    context.set_tensor_address("sizes", allocate(16))
    with pytest.raises(RuntimeError, match="the host reads from the memory of the device"):
        context.execute_async_v3(stream)


def test_a_shape_outside_the_profile_is_refused(plan, log):
    context = trt.Runtime(log).deserialize_cuda_engine(plan).create_execution_context()
    assert not context.all_binding_shapes_specified
    assert context.infer_shapes() == ["input"]
    for shape in [(9, 3, 8, 8), (1, 3, 8, 8), (4, 3, 8, 9), (4, 3)]:
        assert not context.set_input_shape("input", shape)
    assert "does not satisfy any optimization profiles" in log.errors()
    assert tuple(context.get_tensor_shape("logits")) == (-1, 16)
    assert context.set_input_shape("input", (4, 3, 8, 8))
    assert context.all_binding_shapes_specified
    assert tuple(context.get_tensor_shape("logits")) == (4, 16)


def test_nothing_is_run_before_shapes_and_addresses_are_known(plan, log, device):
    stream, allocate = device
    context = trt.Runtime(log).deserialize_cuda_engine(plan).create_execution_context()
    assert not context.execute_async_v3(stream)
    assert context.set_tensor_address("input", allocate(10_000))
    assert context.set_tensor_address("logits", allocate(10_000))
    assert not context.set_tensor_address("nonsense", 1)
    assert not context.execute_async_v3(stream)
    assert "Not all shapes are specified" in log.errors()


def test_a_new_shape_must_run_once_before_it_is_captured(plan, log, device):
    stream, allocate = device
    context = trt.Runtime(log).deserialize_cuda_engine(plan).create_execution_context()
    context.set_input_shape("input", (4, 3, 8, 8))
    for name in ("input", "logits"):
        context.set_tensor_address(name, allocate(10_000))
    for expected in (False, True):
        cudart.cudaStreamBeginCapture(stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
        assert context.execute_async_v3(stream) == expected
        _, graph = cudart.cudaStreamEndCapture(stream)
        assert bool(graph) == expected
        assert context.execute_async_v3(stream) == expected  # a broken capture leaves an error behind
        cudart.cudaGetLastError()
        assert context.execute_async_v3(stream)
    cudart.cudaGraphDestroy(graph)


def test_a_buffer_that_is_too_small_is_an_illegal_access(plan, log, device):
    stream, allocate = device
    context = trt.Runtime(log).deserialize_cuda_engine(plan).create_execution_context()
    context.set_input_shape("input", (4, 3, 8, 8))
    for name in ("input", "logits"):
        context.set_tensor_address(name, allocate(64))
    assert context.execute_async_v3(stream)
    (status,) = cudart.cudaStreamSynchronize(stream)
    assert status == cudart.cudaError_t.cudaErrorIllegalAddress


def test_a_profiler_receives_every_layer_of_a_call_that_waits_for_them(plan, log, device):
    profiler = Profiler()
    before, after = execute(plan, log, images(4), device, profiler=profiler)
    assert np.array_equal(before, after)  # without a profiler, the work would not have been done yet
    assert [name for name, _ in profiler.times] == list(layers(plan, log))
    assert all(isinstance(milliseconds, float) and milliseconds > 0 for _, milliseconds in profiler.times)


def test_a_profiler_receives_nothing_from_a_call_if_it_asks_for_a_later_report(plan, log, device):
    profiler = Profiler()
    before, after = execute(plan, log, images(4), device, profiler=profiler, enqueue_emits_profile=False)
    assert not np.allclose(before, after)
    assert profiler.times == []


def test_the_bindings_refuse_what_is_no_profiler(plan, log, device):
    class Unfinished(trt.IProfiler):
        def __init__(self):
            """The bindings ask for more."""

    with pytest.raises(TypeError, match=r"__init__\(\) must be called"):
        Unfinished()
    with pytest.raises(TypeError, match="incompatible function arguments"):
        execute(plan, log, images(4), device, profiler=print)
    with pytest.raises(AttributeError):
        execute(plan, log, images(4), device, profilers=Profiler())


def test_a_profiler_with_other_parameters_receives_nothing_and_nothing_fails(plan, log, device, capfd):
    class Wrong(Profiler):
        def report_layer_time(self, ms):
            """The bindings hand over the name first."""

    execute(plan, log, images(4), device, profiler=Wrong())
    assert "Exception caught in report_layer_time" in capfd.readouterr().err


def test_a_profiled_call_cannot_be_captured(plan, log, device):
    stream, allocate = device
    context = trt.Runtime(log).deserialize_cuda_engine(plan).create_execution_context()
    context.set_input_shape("input", (4, 3, 8, 8))
    for name in ("input", "logits"):
        context.set_tensor_address(name, allocate(10_000))
    assert context.execute_async_v3(stream)
    context.profiler = profiler = Profiler()
    cudart.cudaStreamBeginCapture(stream, cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal)
    assert not context.execute_async_v3(stream)
    status, _ = cudart.cudaStreamEndCapture(stream)
    assert int(status)
    assert profiler.times == []


def test_layers_are_described_with_kernel_and_type(tiny_onnx, tmp_path, log):
    assert "tf32" in layers(build(tiny_onnx, log), log)["conv1"]["TacticName"]
    exact = build(tiny_onnx, log, change=lambda config: config.clear_flag(trt.BuilderFlag.TF32))
    conv = layers(exact, log)["conv1"]
    key, hidden = "Datatype", "Format"
    if trt.__version__.startswith("10."):
        key = hidden = "Format/Datatype"
    assert "due to dynamic shapes" in layers(exact, log, shaped=False)["conv1"]["Inputs"][0][hidden]
    assert conv["Inputs"][0].items() >= {"Name": "input", "Dimensions": [-1, 3, 8, 8], key: "Float"}.items()
    assert "tf32" not in conv["TacticName"]
    save_graph(cast(tiny_onnx, "fp16", Keep(op_types=(), nodes=())), tmp_path / "fp16.onnx")
    assert layers(build(tmp_path / "fp16.onnx", log), log)["conv1"]["Inputs"][0][key] == "Half"
    if not trt.__version__.startswith("11."):
        loose = layers(build(tmp_path / "fp16.onnx", log, flags=0), log)
        assert loose["conv1"]["Inputs"][0][key] == "Float"


def test_inputs_and_outputs_are_names_in_10_and_objects_in_11(plan, log):
    described = described_engine(plan, log)
    if trt.__version__.startswith("10."):
        assert described["Bindings"] == ["input", "logits"]
    else:
        given, made = described["I/O Tensors"]
        assert given.items() >= {"Name": "input", "IOMode": "Input", "DataType": "Float"}.items()
        assert given["ProfileInfo"][0]["OptShape"] == [4, 3, 8, 8]
        assert (made["Name"], made["IOMode"]) == ("logits", "Output")


def test_without_detail_layers_are_names_alone(tiny_onnx, log):
    names_only = trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    plan = build(tiny_onnx, log, change=lambda config: setattr(config, "profiling_verbosity", names_only))
    inspector = trt.Runtime(log).deserialize_cuda_engine(plan).create_engine_inspector()
    assert json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON))["Layers"][0] == "conv1"


@pytest.mark.parametrize(
    ("failure", "words"),
    {"build_none": "Could not find any implementation for node conv1", "out_of_memory_build": "out of memory"}.items(),
)
def test_building_can_fail(failure, words, tiny_onnx, log, fail):
    fail(failure)
    assert build(tiny_onnx, log) is None
    assert words in log.errors()


def test_running_can_fail(plan, log, device, fail):
    fail("deserialize_none")
    assert trt.Runtime(log).deserialize_cuda_engine(plan) is None
    fail("out_of_memory_run")
    assert trt.Runtime(log).deserialize_cuda_engine(plan).create_execution_context() is None
    fail("execute_false")
    with pytest.raises(AssertionError, match="illegal memory access"):
        execute(plan, log, images(4), device)
    fail("unwritten_output")
    before, after = execute(plan, log, images(4), device)
    assert np.array_equal(after.reshape(-1)[-1:], before.reshape(-1)[-1:])
    assert not np.allclose(after, before)
    fail("wrong_shape")
    context = trt.Runtime(log).deserialize_cuda_engine(plan).create_execution_context()
    context.set_input_shape("input", (4, 3, 8, 8))
    assert tuple(context.get_tensor_shape("logits")) == (5, 16)


def test_an_engine_takes_device_memory_and_gives_it_back(plan, log, monkeypatch):
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    assert cudart.allocated()["device"] == 2
    del context, engine
    assert cudart.allocated()["device"] == 0
    monkeypatch.setenv("SIMULATED_MEMORY", "1000")
    assert trt.Runtime(log).deserialize_cuda_engine(plan) is None
    assert "out of memory" in log.errors()


def test_memory_of_the_user_is_large_enough_and_of_one_context_at_a_time(plan, log, device):
    """The second context waits for nothing first, and then for an event after the work of the first."""
    stream, allocate = device
    _, other = cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking)
    _, event = cudart.cudaEventCreate()
    engine = trt.Runtime(log).deserialize_cuda_engine(plan)
    size = engine.device_memory_size_v2
    scratch, contexts = allocate(size), []
    for each in range(2):
        context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        assert context.set_input_shape("input", (4, 3, 8, 8))
        for name in ("input", "logits"):
            context.set_tensor_address(name, allocate(10_000))
        assert each or not context.execute_async_v3(stream)  # without memory
        context.set_device_memory(scratch, size - 1)
        assert log.errors().count("getDeviceMemorySizeV2") == each + 1
        context.set_device_memory(scratch, size)
        contexts.append(context)
    assert contexts[0].execute_async_v3(stream)
    with pytest.raises(RuntimeError, match="at once: undefined behavior"):
        contexts[1].execute_async_v3(other)
    cudart.cudaEventRecord(event, stream)
    cudart.cudaStreamWaitEvent(other, event, 0)
    assert contexts[1].execute_async_v3(other)
    cudart.cudaStreamDestroy(other)
    cudart.cudaEventDestroy(event)


def test_pytorch_takes_its_cpu_for_a_gpu():
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = torch.nn.Linear(3, 2).to("cuda")
        given = torch.ones(4, 3).pin_memory().to("cuda", non_blocking=True)
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        host = torch.empty_like(model(given), device="cpu", pin_memory=True)
        after.record()
        torch.cuda.current_stream().synchronize()
        torch.cuda.synchronize()
    assert torch.cuda.is_available()
    assert host.shape == (4, 2)
    assert torch.empty(2, device="cuda", pin_memory=True).device.type == "cpu"
    assert before.elapsed_time(after) > 0

"""OpenVINO on the CPU: a compiler that writes blobs for one machine, and the default where there is no GPU."""

import importlib.metadata
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.params.inference import InferenceParams
from enginery.core.runtimes import not_installed
from enginery.core.scratch import scratch_folder
from enginery.core.text import in_one_line
from enginery.engine.record import Layer, LayerTime
from enginery.engine.runtimes import Arrays
from enginery.engine.runtimes.layer_times import WARM_UP, CallTimes, median_times
from enginery.graph.interface import Blueprint

BLOB = "engine.blob"
PRECISION_OF_TYPE = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8", "f8e4m3": "fp8", "f8e5m2": "fp8",
    "i4": "int4", "u4": "int4",
}  # fmt: skip
COMPUTE_LAYERS = {"Convolution", "Deconvolution", "FullyConnected", "MatMul", "ScaledDotProductAttention", "RNNSeq"}
PRODUCTS = {"Convolution", "GroupConvolution", "MatMul"}
MOVES = {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}
REDUCTIONS = {"ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"}
TRANSFORMS = {"DFT", "IDFT", "IRDFT", "RDFT"}
NOT_EXECUTED = {"Const", "Input", "Output"}
CALLS_PER_ROUND = 4
ROUNDS_TO_REACH_ALL = 8


class OpenVINO:
    """Compile and run engines on the CPU."""

    def missing(self) -> str | None:
        return not_installed("openvino")

    def version(self) -> str:
        return importlib.metadata.version("openvino")

    def device(self) -> str:
        return "cpu"

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Sequence[Layer]:
        profile, shapes = blueprint.build.profile, {}
        try:
            model = _read(onnx)
            for spec in blueprint.interface.inputs:
                limits = zip(spec.at(profile.at("min")), spec.at(profile.at("max")), strict=True)
                shapes[spec.name] = _openvino().PartialShape([_openvino().Dimension(*ends) for ends in limits])
            model.reshape(shapes)
            compiled = _openvino().Core().compile_model(model, "CPU", _settings(threads=0))
        except Exception as error:  # OpenVINO's own exceptions share no base class
            raise EngineryError(f"OpenVINO cannot compile {onnx}: {in_one_line(error)}") from None
        (folder / BLOB).write_bytes(compiled.export_model().getvalue())
        return list(map(_layer, _executed(compiled)))

    def load(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int
    ) -> Sequence["OpenVinoSession"]:
        """Give each request a stream: that is OpenVINO's word for a share of the threads."""
        compiled = _imported(folder, _settings(inference.threads) | {"NUM_STREAMS": requests})
        _run_smallest(compiled, blueprint.interface.holding(blueprint.build.profile.at("min")), requests)
        return [OpenVinoSession(compiled, [spec.name for spec in blueprint.interface.outputs]) for _ in range(requests)]

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """Open the model anew for every few calls: OpenVINO reports averages over all calls since it was opened."""
        settings = _settings(inference.threads) | {"PERF_COUNT": True}
        rounds = math.ceil(calls / CALLS_PER_ROUND)
        times = [_one_round(_imported(folder, settings), feeds) for _ in range(rounds)]
        return median_times(list(map(_layer, _executed(_imported(folder, settings)))), times)


def _openvino() -> Any:
    import openvino  # here, since it may be missing

    return openvino


def write_ir(onnx: Path, folder: Path) -> None:
    """Write the graph that `compile` compiles as OpenVINO's own model.xml and model.bin."""
    _openvino().save_model(_read(onnx), folder / "model.xml", compress_to_fp16=False)


def _read(onnx: Path) -> Any:
    """Read a graph through convert_model, and work around bugs. Compiled straight from the path, some int8 graphs
    (Concat before Q/DQ and Conv) silently give wrong results."""
    model = _converted(onnx)
    _keep_factors_out_of_quantization(model)
    _keep_quantized_pixels_out_of_sums(model)
    _give_products_one_reader(model)
    _keep_products_out_of_appended_axes(model)
    _select_by_lists(model)
    return model


def _converted(onnx: Path) -> Any:
    """Convert a graph, or one that computes the same, where OpenVINO lacks the operators that round in blocks, or gets
    Fourier transforms wrong."""
    try:
        model = _openvino().convert_model(onnx)
        if TRANSFORMS.isdisjoint(operation.get_type_name() for operation in model.get_ops()):
            return model
        twin = _twin_of(onnx)
    except Exception:  # OpenVINO's own exceptions share no base class
        if (twin := _twin_of(onnx)) is None:
            raise
    from enginery.graph.onnx_file import save_graph  # here: engines are opened without onnx

    with scratch_folder() as scratch:
        save_graph(twin, scratch / "twin.onnx")
        return _openvino().convert_model(scratch / "twin.onnx")


def _twin_of(onnx: Path) -> Any:
    from enginery.graph.blocks_twin import has_blocks, spelled_out  # here, as above
    from enginery.graph.onnx_file import load_graph
    from enginery.graph.passes import apply_passes
    from enginery.graph.passes.spell_out_dft import SpellOutDft

    graph = load_graph(onnx)
    if has_blocks(graph):
        return spelled_out(graph)
    has_transforms = any(node.op_type == "DFT" for node in graph.graph.node)
    return apply_passes(graph, SpellOutDft()) if has_transforms else None


def _keep_factors_out_of_quantization(model: Any) -> None:
    """Put an operator between factors per channel and a quantization, where some factors are negative, or where axes
    are moved or reduced between the two, as by a mean over tokens. OpenVINO fuses the two, and applies the first
    channel's factor to all channels, negative ones if the batch size varies, as in ConvNeXt's layer scale. A maximum
    with the quantization's own lower bound keeps them apart and changes no value."""
    for quantization in model.get_ops():
        if quantization.get_type_name() == "FakeQuantize" and _has_misplaced_factors(quantization.input_value(0)):
            bounded = _openvino().opset13.maximum(quantization.input_value(0), quantization.input_value(1))
            quantization.input(0).replace_source_output(bounded.output(0))


def _keep_quantized_pixels_out_of_sums(model: Any) -> None:
    """Put the same operator between a quantization and an addition, where each channel has a single pixel. If an int8
    convolution without a bias is added there, and the batch size varies, OpenVINO reads bytes as floats at batch 1:
    seen in the last block of an untrained ResNet on images of 32 pixels, with AVX-512 and without AMX."""
    for addition in model.get_ops():
        shape = addition.output(0).get_partial_shape() if addition.get_type_name() == "Add" else None
        if shape is None or shape.rank.is_dynamic or len(shape) < 3 or not all(size == 1 for size in list(shape)[2:]):
            continue
        for port in addition.inputs():
            quantization = port.get_source_output().get_node()
            if quantization.get_type_name() == "FakeQuantize":
                lowest = quantization.input_value(3)
                port.replace_source_output(_openvino().opset13.maximum(port.get_source_output(), lowest).output(0))


def _give_products_one_reader(model: Any) -> None:
    """Put an operator behind a product whose result is quantized for some readers and exact for others, as between the
    stages of ConvNeXt. OpenVINO otherwise applies the scales of the weights twice before the quantization, which then
    returns zeros."""
    lowest = np.finfo(np.float32).min
    for product in model.get_ops():
        readers = product.output(0).get_target_inputs() if product.get_type_name() in PRODUCTS else ()
        if len(readers) > 1 and any(port.get_node().get_type_name() == "FakeQuantize" for port in readers):
            same = _openvino().opset13.maximum(product.output(0), lowest)
            for port in readers:
                port.replace_source_output(same.output(0))


def _keep_products_out_of_appended_axes(model: Any) -> None:
    """Put an operator behind an int8 product of matrices that moves on with axes of size one behind its own, as keys of
    an attention do where there is one for each image. OpenVINO otherwise takes the second axis for that of the scales
    of the weights, and refuses to compile."""
    for moved in model.get_ops():
        port = _beginning(moved)
        product = port.get_source_output().get_node() if port else moved
        if port and product.get_type_name() == "MatMul" and _is_rounded(product) and _appends_axes(product, moved):
            same = _openvino().opset13.maximum(product.output(0), np.finfo(np.float32).min)
            port.replace_source_output(same.output(0))


def _select_by_lists(model: Any) -> None:
    """Let a Gather of one place, such as that of the last token, take a list of it, and remove the axis afterwards.
    OpenVINO moves the scales of an int8 product's weights behind the Gather, with the axis that it removes if the place
    is a scalar, so that the result has an axis more."""
    for gather in model.get_ops():
        if gather.get_type_name() == "Gather" and _selects_one_of_floats(gather):
            place, axis = (gather.input_value(number).get_node().data.reshape(1) for number in (1, 2))
            name = gather.get_friendly_name()
            selected = _openvino().opset13.gather(gather.input_value(0), place, axis[0], name=name)
            squeezed = _openvino().opset13.squeeze(selected, axis).output(0)
            squeezed.set_names(gather.output(0).get_names())
            for port in gather.output(0).get_target_inputs():
                port.replace_source_output(squeezed)


def _selects_one_of_floats(gather: Any) -> bool:
    known = [gather.input_value(number).get_node() for number in (1, 2)]
    is_known = all(each.get_type_name() == "Constant" for each in known)
    computed = gather.input_value(0).get_node().get_type_name() != "Constant"
    is_float = gather.output(0).get_element_type() == _openvino().Type.f32
    return is_known and computed and is_float and not known[0].data.shape and not gather.get_attributes()["batch_dims"]


def _beginning(node: Any) -> Any:
    """Return the input where a chain of operators begins that only move numbers, and that ends with this node."""
    port = None
    while node.get_type_name() in MOVES:
        port = node.input(0)
        node = port.get_source_output().get_node()
    return port


def _is_rounded(product: Any) -> bool:
    source = product.input_value(0).get_node()
    port = _beginning(source)
    kind: str = (port.get_source_output().get_node() if port else source).get_type_name()
    return kind == "FakeQuantize"


def _appends_axes(before: Any, after: Any) -> bool:
    """Tell whether there are more than two axes before, and the same afterwards with some of size one behind them."""
    old, new = (node.output(0).get_partial_shape() for node in (before, after))
    if old.rank.is_dynamic or new.rank.is_dynamic or not 2 < len(old) < len(new):
        return False
    sizes = list(old)[1:] + [1] * (len(new) - len(old))  # those of one sample
    return all(size == wanted for size, wanted in zip(list(new)[1:], sizes, strict=True))


def _has_misplaced_factors(output: Any) -> bool:
    node, is_moved = output.get_node(), False
    while node.get_type_name() in MOVES | REDUCTIONS:
        node, is_moved = node.input_value(0).get_node(), True
    if node.get_type_name() not in ("Multiply", "Divide"):
        return False
    factors = [port.get_source_output().get_node() for port in node.inputs()]
    constants = [factor.data for factor in factors if factor.get_type_name() == "Constant"]
    return any((array < 0).any() or (is_moved and array.size > 1) for array in constants)


def _run_smallest(compiled: Any, sizes: Arrays, requests: int) -> None:
    """Run the smallest shapes on every stream, or smaller batches after a large one come out wrong. Seen with small
    int8 convolutions on a CPU with AMX: after a large batch, a smaller one is wrong; after the smallest, all are right.
    Probably a stream packs weights for the first batch that it sees, and leaves out sums that kernels for smaller
    batches need. A stream cannot be chosen, but several rounds of all requests at once reach each."""
    shapes = {port: [size.get_min_length() for size in port.partial_shape] for port in compiled.inputs}
    smallest = {port.any_name: np.zeros(shape, port.element_type.to_dtype()) for port, shape in shapes.items()}
    running = [compiled.create_infer_request() for _ in range(requests)]
    for _ in range(1 if requests == 1 else ROUNDS_TO_REACH_ALL):
        for request in running:
            request.start_async(smallest | dict(sizes))
        for request in running:
            request.wait()


def _one_round(compiled: Any, feeds: Arrays) -> CallTimes:
    """Return the mean times of the calls after the warm-up, from the averages before and after them."""
    request = compiled.create_infer_request()
    inputs = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
    averages = []
    for calls in (WARM_UP, CALLS_PER_ROUND):
        for _ in range(calls):
            request.infer(inputs)
        averages.append(_averages(request))
    before, after = averages
    later = {name: after[name] * (WARM_UP + CALLS_PER_ROUND) - before[name] * WARM_UP for name in after}
    names = [(operation.get_friendly_name(), _layer(operation).name) for operation in _executed(compiled)]
    # The averages are cut to microseconds, so that a difference of them may be negative.
    return [(layer, max(0.0, later[name] / CALLS_PER_ROUND)) for name, layer in names if name in later]


def _averages(request: Any) -> dict[str, float]:
    """Return each node's average milliseconds over all calls so far. Nodes fused into others took none."""
    found: defaultdict[str, float] = defaultdict(float)
    for node in request.profiling_info:
        found[node.node_name] += node.real_time.total_seconds() * 1000
    return found


class OpenVinoSession:
    replays = False

    def __init__(self, compiled: Any, outputs: Sequence[str]) -> None:
        self._request = compiled.create_infer_request()
        self._compiled, self._outputs = compiled, outputs

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        results = self._request.infer({name: np.ascontiguousarray(array) for name, array in feeds.items()})
        return {name: results[name] for name in self._outputs}

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        request = self._compiled.create_infer_request()
        # OpenVINO reads the memory of these arrays without keeping them alive, so the call below holds them.
        placed = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        for name, array in placed.items():
            request.set_tensor(name, _openvino().Tensor(array, shared_memory=True))

        def call(held: Arrays = placed) -> None:
            request.infer(share_outputs=True)

        return call

    def close(self) -> None:
        del self._request, self._compiled


def _imported(folder: Path, settings: dict[str, Any]) -> Any:
    return _openvino().Core().import_model(io.BytesIO((folder / BLOB).read_bytes()), "CPU", settings)


def _settings(threads: int) -> dict[str, Any]:
    """Obey the types of the graph: on a CPU with bf16 units, the default would run float32 as bf16."""
    limit = {"INFERENCE_NUM_THREADS": threads} if threads else {}
    return {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1, **limit}


def _executed(compiled: Any) -> Iterable[Any]:
    operations = compiled.get_runtime_model().get_ordered_ops()
    return [operation for operation in operations if _info(operation, "layerType") not in NOT_EXECUTED]


def _layer(operation: Any) -> Layer:
    kind, precision = _info(operation, "layerType"), _info(operation, "runtimePrecision")
    return Layer(
        name=_info(operation, "originalLayersNames") or operation.get_friendly_name(),
        kind=kind,
        precision=PRECISION_OF_TYPE.get(precision, precision),
        computes=kind in COMPUTE_LAYERS,
    )


def _info(operation: Any, key: str) -> str:
    return str(operation.get_rt_info()[key].astype(str))

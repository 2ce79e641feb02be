"""OpenVINO on the CPU: a real compiler with machine-specific blobs, and the default where there is no GPU."""

import importlib.metadata
import importlib.util
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.params.build import Profile
from enginery.core.params.inference import InferenceParams
from enginery.core.runtimes import RUNTIMES
from enginery.engine.record import Layer, LayerTime
from enginery.engine.runtimes.layer_times import WARM_UP, CallTimes, median_times
from enginery.engine.runtimes.protocol import Arrays
from enginery.graph.interface import Blueprint, TensorSpec

FACTS = RUNTIMES["openvino"]
BLOB = "engine.blob"
PRECISIONS = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8", "f8e4m3": "fp8", "f8e5m2": "fp8",
}  # fmt: skip
COMPUTE_LAYERS = {"Convolution", "Deconvolution", "FullyConnected", "MatMul", "ScaledDotProductAttention", "RNNSeq"}
NOT_EXECUTED = {"Const", "Input", "Output"}
CALLS_PER_ROUND = 4
ROUNDS_TO_REACH_ALL = 8


class OpenVINO:
    """Compile and run engines on the CPU."""

    def missing(self) -> str | None:
        if importlib.util.find_spec("openvino") is None:
            return f"{FACTS.title} is not installed: {FACTS.install}"
        return None

    def version(self) -> str:
        return importlib.metadata.version("openvino")

    def device(self) -> str:
        return "cpu"

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Sequence[Layer]:
        import openvino

        try:
            model = _read(onnx)
            model.reshape({spec.name: _bounded(spec, blueprint.build.profile) for spec in blueprint.interface.inputs})
            compiled = openvino.Core().compile_model(model, "CPU", _settings(threads=0))
        except Exception as error:  # OpenVINO's own exceptions share no base class
            raise EngineryError(f"OpenVINO cannot compile {onnx}: {' '.join(str(error).split())}") from None
        (folder / BLOB).write_bytes(compiled.export_model().getvalue())
        return [_layer(operation) for operation in _executed(compiled)]

    def load(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int
    ) -> Sequence["OpenVinoSession"]:
        """Each request has a stream, OpenVINO's word for its share of the threads."""
        compiled = _imported(folder, _settings(inference.threads) | {"NUM_STREAMS": requests})
        _begin_small(compiled, requests)
        return [OpenVinoSession(compiled, [spec.name for spec in blueprint.interface.outputs]) for _ in range(requests)]

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """OpenVINO counts for as long as a model is open, and tells averages: it is opened anew for every few calls."""
        settings = _settings(inference.threads) | {"PERF_COUNT": True}
        rounds = math.ceil(calls / CALLS_PER_ROUND)
        told = [_one_round(_imported(folder, settings), feeds) for _ in range(rounds)]
        layers = [_layer(operation) for operation in _executed(_imported(folder, settings))]
        return median_times(layers, told)


def write_ir(onnx: Path, folder: Path) -> None:
    """The graph that `compile` compiles, as OpenVINO's own model.xml and model.bin."""
    import openvino

    openvino.save_model(_read(onnx), folder / "model.xml", compress_to_fp16=False)


def _read(onnx: Path) -> Any:
    """Through convert_model, never compiled straight from the path: some int8 graphs (Concat before Q/DQ and Conv) give
    silently wrong results then."""
    import openvino

    model = openvino.convert_model(onnx)
    _keep_negative_factors_out_of_quantization(model)
    _keep_quantized_pixels_out_of_sums(model)
    return model


def _keep_negative_factors_out_of_quantization(model: Any) -> None:
    """Where a quantization follows factors per channel, and some are negative, OpenVINO makes one step of both that
    applies the first channel's factor to all, if the batch size varies: ConvNeXt's layer scale is such. The
    quantization's own lower bound, put between them as an operator, keeps them apart and changes nothing."""
    from openvino import opset13

    for quantization in model.get_ops():
        if quantization.get_type_name() == "FakeQuantize" and _has_negative_factors(quantization.input_value(0)):
            bounded = opset13.maximum(quantization.input_value(0), quantization.input_value(1))
            quantization.input(0).replace_source_output(bounded.output(0))


def _keep_quantized_pixels_out_of_sums(model: Any) -> None:
    """Where an int8 convolution without a bias ends in a single pixel and a quantized one is added, OpenVINO reads
    bytes as floats at batch 1, if the batch size varies: the last block of an untrained ResNet on images of 32 pixels,
    on a CPU with AVX-512 and without AMX. The quantization's own lower bound, put between them as an operator, keeps
    them apart and changes nothing."""
    from openvino import opset13

    for addition in model.get_ops():
        if addition.get_type_name() != "Add" or not _is_of_pixels(addition.output(0)):
            continue
        for port in addition.inputs():
            quantization = port.get_source_output().get_node()
            if quantization.get_type_name() == "FakeQuantize":
                lowest = quantization.input_value(3)
                port.replace_source_output(opset13.maximum(port.get_source_output(), lowest).output(0))


def _is_of_pixels(output: Any) -> bool:
    """One for each sample and channel."""
    shape = output.get_partial_shape()
    return bool(shape.rank.is_static) and len(shape) > 2 and all(dimension == 1 for dimension in list(shape)[2:])


def _has_negative_factors(output: Any) -> bool:
    product = output.get_node()
    if product.get_type_name() not in ("Multiply", "Divide"):
        return False
    factors = [port.get_source_output().get_node() for port in product.inputs()]
    return any(factor.get_type_name() == "Constant" and (factor.data < 0).any() for factor in factors)


def _begin_small(compiled: Any, requests: int) -> None:
    """Run the smallest shapes first, or smaller batches after a large one come out wrong.

    Seen with small int8 convolutions on a CPU with AMX: after a large batch, a smaller one is wrong; after the
    smallest, all are right. Probably a stream packs weights for the first batch that it sees, without what kernels for
    smaller ones add up. A stream cannot be called by name: several rounds of all requests at once reach each.
    """
    smallest = {
        port.any_name: np.zeros(
            [dimension.get_min_length() for dimension in port.partial_shape], port.element_type.to_dtype()
        )
        for port in compiled.inputs
    }
    running = [compiled.create_infer_request() for _ in range(requests)]
    for _ in range(1 if requests == 1 else ROUNDS_TO_REACH_ALL):
        for request in running:
            request.start_async(smallest)
        for request in running:
            request.wait()


def _one_round(compiled: Any, feeds: Arrays) -> CallTimes:
    """The mean of the calls after the warm-up, from the averages with it and without."""
    request = compiled.create_infer_request()
    inputs = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
    averages = []
    for calls in (WARM_UP, CALLS_PER_ROUND):
        for _ in range(calls):
            request.infer(inputs)
        averages.append(_averages(request))
    before, after = averages
    return [
        (_layer(operation).name, _mean_between(before[name], after[name]))
        for operation in _executed(compiled)
        if (name := operation.get_friendly_name()) in after
    ]


def _averages(request: Any) -> dict[str, float]:
    """Milliseconds by node, over all calls so far. What became part of another node was not run."""
    found: defaultdict[str, float] = defaultdict(float)
    for node in request.profiling_info:
        found[node.node_name] += node.real_time.total_seconds() * 1000
    return found


def _mean_between(before: float, after: float) -> float:
    """Of the later calls. An average is cut to microseconds, which must not make it less than nothing."""
    return max(0.0, (after * (WARM_UP + CALLS_PER_ROUND) - before * WARM_UP) / CALLS_PER_ROUND)


class OpenVinoSession:
    replays = False

    def __init__(self, compiled: Any, outputs: Sequence[str]) -> None:
        self._request = compiled.create_infer_request()
        self._compiled, self._outputs = compiled, outputs

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        results = self._request.infer({name: np.ascontiguousarray(array) for name, array in feeds.items()})
        return {name: results[name] for name in self._outputs}

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        import openvino

        request = self._compiled.create_infer_request()
        # OpenVINO reads the arrays' own memory and does not keep them alive: the call below must.
        placed = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
        for name, array in placed.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

        def call(held: Arrays = placed) -> None:
            request.infer(share_outputs=True)

        return call

    def close(self) -> None:
        del self._request, self._compiled


def _imported(folder: Path, settings: dict[str, Any]) -> Any:
    import openvino

    with (folder / BLOB).open("rb") as blob:
        return openvino.Core().import_model(io.BytesIO(blob.read()), "CPU", settings)


def _settings(threads: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        # Obey the types of the graph. The default on a CPU with bf16 units would turn "fp32" into bf16.
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
    }
    return settings | ({"INFERENCE_NUM_THREADS": threads} if threads else {})


def _bounded(spec: TensorSpec, profile: Profile) -> Any:
    import openvino

    low, high = spec.at(profile.at("min")), spec.at(profile.at("max"))
    return openvino.PartialShape([openvino.Dimension(*limits) for limits in zip(low, high, strict=True)])


def _executed(compiled: Any) -> Iterable[Any]:
    operations = compiled.get_runtime_model().get_ordered_ops()
    return [operation for operation in operations if _info(operation, "layerType") not in NOT_EXECUTED]


def _layer(operation: Any) -> Layer:
    kind = _info(operation, "layerType")
    precision = _info(operation, "runtimePrecision")
    return Layer(
        name=_info(operation, "originalLayersNames") or operation.get_friendly_name(),
        kind=kind,
        precision=PRECISIONS.get(precision, precision),
        computes=kind in COMPUTE_LAYERS,
    )


def _info(operation: Any, key: str) -> str:
    return str(operation.get_rt_info()[key].astype(str))

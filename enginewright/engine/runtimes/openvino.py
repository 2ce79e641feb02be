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

from enginewright.core.errors import CompilerError
from enginewright.core.facts import not_installed
from enginewright.core.params.build import InferenceParams
from enginewright.core.text import in_one_line
from enginewright.engine.record import Layer, LayerTime
from enginewright.engine.runtimes.openvino_graph import openvino, read_graph
from enginewright.engine.runtimes.runtime import WARM_UP, Arrays, CallTimes, Compiled, median_times
from enginewright.graph.interface import Blueprint

BLOB = "engine.blob"
PRECISION_OF_TYPE = {
    "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i8": "int8", "u8": "int8", "f8e4m3": "fp8", "f8e5m2": "fp8",
    "i4": "int4", "u4": "int4",
}  # fmt: skip
COMPUTE_LAYERS = {"Convolution", "Deconvolution", "FullyConnected", "MatMul", "ScaledDotProductAttention", "RNNSeq"}
NOT_EXECUTED = {"Const", "Input", "Output"}
CALLS_PER_ROUND = 4


class OpenVINO:
    def missing(self) -> str | None:
        return not_installed("openvino")

    def version(self) -> str:
        return importlib.metadata.version("openvino")

    def device(self) -> str:
        return "cpu"

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Compiled:
        profile, shapes = blueprint.build.profile, {}
        try:
            model = read_graph(onnx)
            for spec in blueprint.interface.inputs:
                limits = zip(spec.at(profile.at("min")), spec.at(profile.at("max")), strict=True)
                shapes[spec.name] = openvino().PartialShape([openvino().Dimension(*ends) for ends in limits])
            model.reshape(shapes)
            compiled = openvino().Core().compile_model(model, "CPU", _settings(threads=0))
        except Exception as error:  # OpenVINO's own exceptions share no base class
            raise CompilerError(f"OpenVINO cannot compile {onnx}: {in_one_line(error)}") from None
        (folder / BLOB).write_bytes(compiled.export_model().getvalue())
        return Compiled(list(map(_layer, _executed(compiled))), blueprint.build)

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
        times = []
        for _ in range(math.ceil(calls / CALLS_PER_ROUND)):
            compiled = _imported(folder, settings)
            times.append(_one_round(compiled, feeds))
        return median_times(list(map(_layer, _executed(compiled))), times)


def _run_smallest(compiled: Any, sizes: Arrays, requests: int) -> None:
    """Run the smallest shapes on every stream, or smaller batches after a large one come out wrong: seen with small
    int8 convolutions on a CPU with AMX. Probably a stream packs weights for the first batch that it sees, and leaves
    out sums that kernels for smaller batches need."""
    shapes = {port: [size.get_min_length() for size in port.partial_shape] for port in compiled.inputs}
    smallest = {port.any_name: np.zeros(shape, port.element_type.to_dtype()) for port, shape in shapes.items()}
    running = [compiled.create_infer_request() for _ in range(requests)]
    for _ in range(1 if requests == 1 else 8):  # a stream cannot be chosen, but all requests at once reach each
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
        found: defaultdict[str, float] = defaultdict(float)  # milliseconds over all calls so far; fused nodes took none
        for node in request.profiling_info:
            found[node.node_name] += node.real_time.total_seconds() * 1000
        averages.append(found)
    before, after = averages
    later = {name: after[name] * (WARM_UP + CALLS_PER_ROUND) - before[name] * WARM_UP for name in after}
    names = [(operation.get_friendly_name(), _layer(operation).name) for operation in _executed(compiled)]
    # The averages are cut to microseconds, so that a difference of them may be negative.
    return [(layer, max(0.0, later[name] / CALLS_PER_ROUND)) for name, layer in names if name in later]


class OpenVinoSession:
    replays = False

    def __init__(self, compiled: Any, outputs: Sequence[str]) -> None:
        self._request = compiled.create_infer_request()
        self._compiled, self._outputs = compiled, outputs

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        placed = _place(feeds, self._request)
        results = self._request.infer()
        del placed  # and not before
        return {name: results[name] for name in self._outputs}

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        request = self._compiled.create_infer_request()
        placed = _place(feeds, request)

        def call(held: Arrays = placed) -> None:
            request.infer(share_outputs=True)

        return call

    def close(self) -> None:
        del self._request, self._compiled


def _place(feeds: Arrays, request: Any) -> Arrays:
    """Let a request read these arrays where they are, and return what must live as long as it does so. A request that
    is given copies would write them to where the stream's last request has its arrays, which may be freed."""
    placed = {name: np.require(array, requirements=["C", "W"]) for name, array in feeds.items()}
    for name, array in placed.items():
        request.set_tensor(name, openvino().Tensor(array, shared_memory=True))
    return placed


def _imported(folder: Path, settings: dict[str, Any]) -> Any:
    return openvino().Core().import_model(io.BytesIO((folder / BLOB).read_bytes()), "CPU", settings)


def _settings(threads: int) -> dict[str, Any]:
    """Obey the types of the graph: on a CPU with bf16 units, the default would run float32 as bf16."""
    return {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}


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

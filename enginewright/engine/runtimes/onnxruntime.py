"""ONNX Runtime: the CUDA provider where there is a GPU, the CPU provider elsewhere. The engine is the graph after its
optimizer, which fuses for the provider and the processor at hand."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import load_model

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES, not_installed
from enginewright.core.files import scratch_folder
from enginewright.core.params.build import BuildParams, InferenceParams
from enginewright.core.text import first_line
from enginewright.core.version import installed_version
from enginewright.engine.record import Layer, LayerTime
from enginewright.engine.runtimes import WARM_UP, Arrays, Session, median_times
from enginewright.engine.runtimes.onnxruntime_session import (
    GRAPH,
    device,
    fastest_layout,
    has_choice,
    open_on_gpu,
    open_session,
    optimize,
    options_for,
    require_known_sizes,
    try_in_own_process,
)
from enginewright.graph.as_written import twin_of
from enginewright.graph.interface import Blueprint
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.passes import changed_by
from enginewright.graph.passes.for_one_compiler import merge_products

RAN = "_kernel_time"  # in the profile, the end of the name of each node that was run
PRECISION_OF_TYPE = {
    "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8", "uint8": "int8",
    "float8e4m3fn": "fp8", "float8e5m2": "fp8",
}  # fmt: skip
PRECISION_OF_KIND = {"MatMulNBits": "int4"}  # which reads floats and weights of four bits
COMPUTE_WORDS = ("Conv", "Gemm", "MatMul", "Attention")


class ONNXRuntime:
    def missing(self) -> str | None:
        return not_installed("onnxruntime")

    def version(self) -> str:
        if version := installed_version(*RUNTIMES["onnxruntime"].distributions):
            return version
        raise EnginewrightError(
            "ONNX Runtime is imported from outside the environment: install onnxruntime-gpu into it"
        )

    def device(self) -> str:
        return device()

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Sequence[Layer]:
        """Optimize the graph, whose sizes stay dynamic: the profile is enforced when the engine is fed."""
        build, is_on_gpu = blueprint.build, device() == "cuda"
        if is_on_gpu:
            require_known_sizes(blueprint)
        try:
            with scratch_folder() as scratch:
                given = onnx
                if is_on_gpu and (merged := changed_by(load_graph(onnx), merge_products)):
                    save_graph(merged, given := scratch / "merged.onnx")
                try:
                    optimize(given, folder, build)
                except Exception:
                    # Both providers lack bfloat16 kernels, the CPU's for Conv, CUDA's for MaxPool, and NVIDIA's blocks.
                    # A graph of the same meaning in float32 is built instead, and its layers will say fp32.
                    if (twin := twin_of(load_graph(given))) is None:
                        raise
                    save_graph(twin, given := scratch / "twin.onnx")
                    optimize(given, folder, build)
                if is_on_gpu and not blueprint.is_probe:
                    graph = load_model(given, load_external_data=False).graph
                    if has_choice(graph) and (layout := fastest_layout(partial(try_in_own_process, given, blueprint))):
                        optimize(given, folder, build, layout)
            example = blueprint.example or blueprint.interface.zeros(build.profile.at("min"))
            with _profiled(folder, build, threads=0) as session:  # the layers are those that an inference runs
                session.run(None, dict(example))
                (ran,) = _nodes_by_call(session)
            return [_layer(node, build.tf32) for node in ran]
        except Exception as error:  # ONNX Runtime's own exceptions share no base class
            raise EnginewrightError(f"ONNX Runtime cannot compile {onnx}: {first_line(error)}") from None

    def load(self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int) -> Sequence[Session]:
        options = options_for(inference.threads)
        if device() == "cpu":
            session = open_session(folder / GRAPH, options, blueprint.build)
            return [CpuSession(session) for _ in range(requests)]
        return [open_on_gpu(folder / GRAPH, blueprint, options, inference.cuda_graph) for _ in range(requests)]

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """Profile the calls. On a GPU, the launch of a kernel is timed, which is made to include its execution."""
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # CUDA reads it when the process first uses it
        with _profiled(folder, blueprint.build, inference.threads) as session:
            for _ in range(WARM_UP + calls):
                session.run(None, dict(feeds))
            ran = _nodes_by_call(session)[WARM_UP:]
        times = [[(node["name"], node["dur"] / 1000) for node in nodes] for nodes in ran]
        return median_times([_layer(node, blueprint.build.tf32) for node in ran[0]], times)


class CpuSession:
    replays = False

    def __init__(self, session: Any) -> None:
        self._session = session
        self._outputs = [tensor.name for tensor in session.get_outputs()]

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        return dict(zip(self._outputs, self._session.run(self._outputs, dict(feeds)), strict=True))

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        return lambda: self._session.run_with_iobinding(binding)

    def close(self) -> None:
        del self._session


@contextmanager
def _profiled(folder: Path, build: BuildParams, threads: int) -> Iterator[Any]:
    options = options_for(threads)
    options.enable_profiling = True
    with scratch_folder() as scratch:
        options.profile_file_prefix = str(scratch / "profile")
        yield open_session(folder / GRAPH, options, build)


def _nodes_by_call(session: Any) -> list[list[dict[str, Any]]]:
    """End the profile, and return the nodes that each call ran."""
    calls: list[list[dict[str, Any]]] = [[]]
    for event in json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")):
        if event["name"] == "model_run":  # follows the nodes of a call
            calls.append([])
        elif event.get("cat") == "Node" and event["name"].endswith(RAN):
            calls[-1].append(event | {"name": event["name"].removesuffix(RAN)})
    return calls[:-1]


def _layer(node: dict[str, Any], tf32: bool) -> Layer:
    """Describe a node. Float32 counts as tf32 where a GPU may use it: ONNX Runtime does not say which kernels do."""
    ran = node["args"]
    kind = ran["op_name"]
    element = next(iter((ran.get("input_type_shape") or [{}])[0]), "none")  # of the first input
    precision = PRECISION_OF_KIND.get(kind) or PRECISION_OF_TYPE.get(element, element)
    computes = any(word in kind for word in COMPUTE_WORDS)
    if precision == "fp32" and computes and tf32 and ran.get("provider") == "CUDAExecutionProvider":
        precision = "tf32"
    return Layer(name=node["name"], kind=kind, precision=precision, computes=computes)

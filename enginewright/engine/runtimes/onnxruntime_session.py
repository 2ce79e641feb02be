"""Optimize a graph in ONNX Runtime, and open what came of it: on the GPU where there is one."""

import ctypes
from pathlib import Path
from typing import Any

from onnx import load_model

from enginewright.core.params.build import BuildParams
from enginewright.engine.runtimes.onnxruntime_cuda import cuda_session, settings_for
from enginewright.engine.runtimes.onnxruntime_layout import CHANNELS_FIRST, Layout, write_layout
from enginewright.graph.files import data_of

GRAPH = "engine.onnx"


def device() -> str:
    """Return 'cuda' only where the driver is installed as well: the provider is listed on any machine."""
    import onnxruntime

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "cpu"
    return "cuda" if "CUDAExecutionProvider" in onnxruntime.get_available_providers() else "cpu"


def options_for(threads: int, optimize: bool = False) -> Any:
    """Return the options of a session. Only `compile` optimizes."""
    import onnxruntime

    options, level = onnxruntime.SessionOptions(), onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # nothing is printed: errors are raised as well
    return options


def optimize(model: Path, folder: Path, build: BuildParams, layout: Layout = CHANNELS_FIRST) -> None:
    options = options_for(threads=0, optimize=True)
    options.optimized_model_filepath = str(folder / GRAPH)
    if data_of(model).exists():
        data = data_of(folder / GRAPH).name
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", data)
    open_session(model, options, build, layout)
    if layout:
        write_layout(folder / GRAPH, layout)


def open_session(model: Path, options: Any, build: BuildParams, layout: Layout = CHANNELS_FIRST) -> Any:
    import onnxruntime

    if device() == "cpu":
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    settings = settings_for(load_model(model, load_external_data=False), options, build)
    return cuda_session(model, options, {**settings, **layout})

"""Find the nodes that ONNX Runtime's CUDA provider computes otherwise with channels last than a CPU does.

    python benchmarks/channels_last.py artifacts/simplified/model.onnx

Every tensor of the graph becomes an output. A node is named whose result is off by more than LIMIT while what it reads
is not, at each batch size and with each of LAYOUTS. That nothing is found may be because outputs prevent fusions.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from enginery.graph.onnx_file import load_graph

BATCHES, LIMIT = (1, 2, 4), 0.005
LAYOUTS: dict[str, dict[str, str]] = {
    "first": {},
    "last": {"prefer_nhwc": "1"},
    "last, biases fused": {"prefer_nhwc": "1", "fuse_conv_bias": "1"},
}
Arrays = dict[str, NDArray[Any]]


def with_all_outputs(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with each tensor of numbers as an output, whose shape ONNX Runtime finds."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph)
    known = {value.name for value in changed.graph.output}
    changed.graph.output.extend(value for value in graph.graph.value_info if value.name not in known)
    return changed


def answers(graph: onnx.ModelProto, provider: str, settings: Mapping[str, str], feeds: Arrays) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=[(provider, dict(settings))])
    if provider not in session.get_providers():
        sys.exit("needs a GPU, and ONNX Runtime's CUDA provider did not load")
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def wrong_nodes(graph: onnx.ModelProto, batch: int, layout: Mapping[str, str]) -> list[str]:
    (source,) = graph.graph.input
    shape = [size.dim_value for size in source.type.tensor_type.shape.dim][1:]
    feeds = {source.name: np.random.default_rng(batch).normal(size=(batch, *shape)).astype(np.float32)}
    whole = with_all_outputs(graph)
    wanted = answers(whole, "CPUExecutionProvider", {}, feeds)
    found = answers(whole, "CUDAExecutionProvider", {"use_tf32": "0", **layout}, feeds)
    wrong = {name: each for name in wanted if not (each := error(found[name], wanted[name])) <= LIMIT}  # or is NaN
    return [
        f"{node.op_type} {node.name}: {wrong[name]:.4f}"
        for node in graph.graph.node
        for name in node.output
        if name in wrong and wrong.keys().isdisjoint(node.input)
    ]


def error(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    exact = wanted.astype(np.float64)
    return float(np.linalg.norm(found - exact) / max(float(np.linalg.norm(exact)), 1e-12))


def main() -> None:
    onnxruntime.preload_dlls()
    for path in map(Path, sys.argv[1:]):
        for batch in BATCHES:
            for name, layout in LAYOUTS.items():
                wrong = wrong_nodes(load_graph(path), batch, layout) or ["none"]
                print(f"{path}, batch {batch}, channels {name}: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()

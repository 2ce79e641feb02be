"""Write a script that compares an engine with its graph by NVIDIA's Polygraphy, which pip installs beside TensorRT."""

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from enginewright.data.feeds import Feeds
from enginewright.engine.record import EngineRecord
from enginewright.graph.onnx_file import load_graph
from enginewright.graph.twin import twin_of

INPUTS, SCRIPT_NAME = "inputs.json", "polygraphy.sh"
RUNNERS = ("tensorrt", "tensorrt_rtx", "onnxruntime")  # the runtimes that Polygraphy has, too
COSINE = {"fp32": 0.99999, "fp16": 0.9999, "bf16": 0.999}  # by default what the thresholds of params.yaml ask for
COSINE_OF_QUANTIZED = 0.99
SCRIPT = """\
#!/usr/bin/env bash
# Compare this engine with ONNX Runtime, which executes its graph as it is written, on samples of the validation set.
# Usage: bash {name} [more options of `polygraphy run`, such as --compare l2]
set -euo pipefail
cd "$(dirname "$0")"
export ORT_DISABLE_TELEMETRY=1
if ! command -v polygraphy >/dev/null; then
    python3 -c "import polygraphy" 2>/dev/null ||
        {{ echo "polygraphy is neither on the PATH nor in python3's packages: pip install polygraphy" >&2; exit 1; }}
    polygraphy() {{ python3 -c "import sys; from polygraphy.tools import main; sys.exit(main())" "$@"; }}
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
{rtx}{twin}
polygraphy run {graph} --onnxrt --providers CPUExecutionProvider --graph-optimization-level ORT_DISABLE_ALL \\
    --load-inputs {inputs} --save-outputs "$scratch"/outputs.json
polygraphy run {engine} \\
    --load-inputs {inputs} --load-outputs "$scratch"/outputs.json \\
    --compare cosine_similarity --cosine-similarity-threshold {cosine} "$@"
"""
# ONNX Runtime has neither bfloat16 on a CPU nor blocks of nvfp4 and mxfp8: it is given float32 that is rounded alike.
TWIN = """\
python3 - {graph} "$scratch"/float32.onnx <<'PYTHON'
import sys
from pathlib import Path
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.twin import twin_of
save_graph(twin_of(load_graph(Path(sys.argv[1]))), Path(sys.argv[2]))
PYTHON
"""


def write_comparison(record: EngineRecord, onnx: Path, feeds: Iterable[Feeds], folder: Path) -> None:
    """Write the script and its inputs into the engine's folder, if Polygraphy can run such engines.

    It cannot put weights into a plan that has none. `enginewright refit` reads the inputs, too.
    """
    if record.target.runtime not in RUNNERS:
        return
    from polygraphy.json import save_json  # here, because all that opens an engine would wait for this import

    save_json([dict(feed) for feed in feeds], str(folder / INPUTS), description=None)
    if not record.weights:
        write_script(record, onnx, folder, folder)


def write_script(record: EngineRecord, onnx: Path, folder: Path, place: Path) -> None:
    """Write the script into a folder that will be at `place`."""
    (folder / SCRIPT_NAME).write_text(comparison_script(record, onnx, os.path.relpath(onnx, place)), encoding="utf-8")


def comparison_script(record: EngineRecord, onnx: Path, path: str) -> str:
    """Return the script. `path` is the path of the graph as seen from the engine's folder."""
    graph, has_twin = shlex.quote(path), twin_of(load_graph(onnx)) is not None
    return SCRIPT.format(
        name=SCRIPT_NAME,
        rtx="export POLYGRAPHY_USE_TENSORRT_RTX=1\n" if record.target.runtime == "tensorrt_rtx" else "",
        twin=TWIN.format(graph=graph) if has_twin else "",
        graph='"$scratch"/float32.onnx' if has_twin else graph,
        inputs=INPUTS,
        engine=" ".join(_engine_options(record)),
        cosine=least_cosine(record.precision),
    )


def least_cosine(precision: str) -> float:
    return COSINE.get(precision, COSINE_OF_QUANTIZED)


def _engine_options(record: EngineRecord) -> list[str]:
    if record.target.runtime == "onnxruntime":  # the engine is optimized already
        provider = "CUDAExecutionProvider" if record.target.device == "cuda" else "CPUExecutionProvider"
        return ["engine.onnx", "--onnxrt", f"--providers {provider}", "--graph-optimization-level ORT_DISABLE_ALL"]
    plugins = [shlex.quote(f"./{name}") for name in record.build.tensorrt.plugin_names]
    return ["engine.plan", "--trt", "--model-type engine", *([f"--plugins {' '.join(plugins)}"] if plugins else [])]

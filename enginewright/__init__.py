"""Turn a trained PyTorch model into inference engines, one for each precision, and prove each of them.

What is documented in docs/python.md stands here. Importing this package imports no other library.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from enginewright.core.errors import EnginewrightError

# ONNX Runtime tells Microsoft, and OpenVINO's package tells Google, what they load and run, from threads and processes
# that would run beside a race, unless this is set before they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

if TYPE_CHECKING:
    from enginewright.cli.python import Report
    from enginewright.core.facts import PrecisionName, RuntimeName
    from enginewright.engine.engine import Engine
    from enginewright.measure.comparison import Change

__all__ = ["EnginewrightError", "__version__", "build", "compare", "open_engine", "read_report"]
__version__ = "0.3.0"  # semantic, see CHANGELOG.md; pyproject.toml takes it from here


def open_engine(
    folder: str | Path,
    threads: int = 0,
    cuda_graph: bool = False,
    *,
    weights_on_gpu_mb: Literal["auto", "all"] | int = "auto",
) -> "Engine":
    """Open the folder of an engine, such as artifacts/engines/int8, and return the engine, ready to run.

    `threads` is for a CPU; 0 means one for each core that may be used. `cuda_graph` is for a GPU: the work of each
    shape is captured once and then launched as one. `weights_on_gpu_mb` is for an engine that streams its weights: how
    many megabytes of them stay on the GPU, a number, "all", or "auto", which is what its free memory holds. An engine
    that is damaged or was built for another machine is refused with an EnginewrightError.
    """
    from enginewright.core.params.build import InferenceParams
    from enginewright.engine.engine import open_engine as open_checked

    inference = InferenceParams(threads=threads, cuda_graph=cuda_graph, weights_on_gpu_mb=weights_on_gpu_mb)
    return open_checked(Path(folder), None, inference)


def build(
    model: Any,
    example_inputs: Any,
    precision: "PrecisionName" = "int8",
    calibration: Any = None,
    *,
    folder: str | Path | None = None,
    batch: tuple[int, int, int] | None = None,
    runtime: "RuntimeName | str" = "auto",
) -> "Engine":
    """Build an engine of a PyTorch model without a project, by the stages of the pipeline, and open it.

    `example_inputs` is what the model takes: a tensor or array, several in the order of `forward`, or a dictionary by
    the names of its arguments. `calibration` has samples of the same kind, at once or as an iterable of batches such as
    a DataLoader; int8, fp8 and nvfp4 need it. As many samples as there are examples are set apart, by chance, to
    compare the engine with PyTorch. What each stage finds is printed.

    `folder` is where to keep the engine for `open_engine`; without it, the engine lasts as long as this Python.
    `batch` is the smallest, the usual and the largest batch; all other sizes are those of the examples. `runtime` is
    what executes the engine, such as openvino or tensorrt.
    """
    from enginewright.cli.python import build_engine

    return build_engine(model, example_inputs, precision, calibration, folder, batch, runtime)


def read_report(place: str | Path = "reports") -> "Report":
    """Read what a run of the pipeline found: its verdict, and the measurements of each precision.

    `place` is a reports folder."""
    from enginewright.cli.python import read

    return read(Path(place))


def compare(before: str | Path, after: str | Path = "reports", confidence: float = 0.99) -> "list[Change]":
    """Compare two runs, each a reports folder, a measurements.json or a git revision, as `enginewright compare` does.

    Each change has `precision`, `figure`, `before`, `after`, `outcome` and, as a share above 0 if the later run is
    better, `change`. `confidence` holds for all of them together."""
    from enginewright.measure.comparison import compare_runs
    from enginewright.measure.history import read_measurements

    return compare_runs(read_measurements(str(before)), read_measurements(str(after)), confidence)

"""Turn a trained PyTorch model into inference engines, one for each precision, and prove each of them.

Programs that only run an engine need nothing but `open_engine`. Importing this package imports no other library.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from enginery.core.errors import EngineryError

# ONNX Runtime tells Microsoft, and OpenVINO's package tells Google, what they load and run, from threads and processes
# that would run beside a race, unless this is set before they are imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

if TYPE_CHECKING:
    from enginery.engine.engine import Engine

__all__ = ["EngineryError", "open_engine"]


def open_engine(folder: str | Path, threads: int = 0, cuda_graph: bool = False) -> "Engine":
    """Open the folder of an engine, such as artifacts/engines/int8, and return the engine, ready to run.

    `threads` is for a CPU; 0 means one for each core that may be used. `cuda_graph` is for a GPU: the work of each
    shape is captured once and then launched as one. An engine that is damaged or was built for another machine is
    refused with an EngineryError.
    """
    from enginery.core.params.inference import InferenceParams
    from enginery.engine.engine import open_engine as open_checked

    return open_checked(Path(folder), None, InferenceParams(threads=threads, cuda_graph=cuda_graph))

"""Turn a trained PyTorch model into inference engines, one for each precision, and prove each of them."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginery.engine.engine import Engine

__all__ = ["open_engine"]


def open_engine(folder: str | Path, threads: int = 0, cuda_graph: bool = False) -> "Engine":
    """Open the folder of an engine, such as artifacts/engines/int8, and return the engine, ready to run.

    `threads` is for a CPU, 0 means one for each core that may be used; `cuda_graph` is for a GPU, where it captures the
    work of each shape once. The engine is refused if it is damaged or was built for another machine.
    """
    from enginery.core.params.inference import InferenceParams
    from enginery.engine.engine import open_engine as open_checked

    return open_checked(Path(folder), inference=InferenceParams(threads=threads, cuda_graph=cuda_graph))

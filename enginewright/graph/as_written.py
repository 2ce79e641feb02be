"""Run a graph in ONNX Runtime on the CPU: as it is written, with the optimizer off, or faster, with it on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
import onnxruntime

from enginewright.cluster.spread import Work
from enginewright.core.cores import working_threads
from enginewright.core.scratch import scratch_folder
from enginewright.data.feeds import Feeds, Outputs, Run
from enginewright.data.parts import Part
from enginewright.graph.data_apart import bytes_of_weights, has_data_apart
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.twin import twin_of

MOST_BYTES = 1 << 28  # of weights that are given in memory: a session keeps a copy of them beside its own
DROPS_RELU = "ReluQuantRewrite"  # of ONNX Runtime 1.31: it drops a Relu before a QuantizeLinear to float8, too


def open_as_written(
    model: onnx.ModelProto | Path, threads: int = 0, spins: bool = True
) -> onnxruntime.InferenceSession:
    """Open a session that computes what the graph says, not what a compiler makes of it; 0 threads: `working_threads`.

    Threads that wait for work spin a while, which is fast where nothing else needs their cores.
    """
    return _open_session(model, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, threads, spins)


def open_optimized(model: onnx.ModelProto | Path, threads: int = 0) -> onnxruntime.InferenceSession:
    """Open a session that computes the same in two thirds of the time or less, but for the last bits of its sums."""
    return _open_session(model, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL, threads)


def _open_session(
    model: onnx.ModelProto | Path, level: onnxruntime.GraphOptimizationLevel, threads: int, spins: bool = True
) -> onnxruntime.InferenceSession:
    # In memory, ONNX Runtime does not find weights that are in a file elsewhere, and takes 2 GB at most.
    if isinstance(model, onnx.ModelProto) and (bytes_of_weights(model) > MOST_BYTES or has_data_apart(model)):
        with scratch_folder() as scratch:
            path = scratch / "model.onnx"
            save_graph(model, path)
            return _open_session(path, level, threads, spins)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4  # what goes wrong is raised
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # what is rounded is calculated in floats
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    options.intra_op_num_threads = threads or working_threads()  # ONNX Runtime counts cores that it may not use
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(
        source, options, providers=["CPUExecutionProvider"], disabled_optimizers=[DROPS_RELU]
    )


@dataclass(frozen=True)
class GraphWork(Work[Part, list[Outputs]]):
    """Run the graph of a folder, whose weights may be a file of their own."""

    folder: Path
    optimized: bool = False

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[Part], list[Outputs]]]:
        path = self.folder / "model.onnx"
        run = run_optimized(path, threads) if self.optimized else run_as_written(path, threads)
        yield lambda part: [run(feeds) for feeds in part.feeds()]


def run_as_written(path: Path, threads: int = 0) -> Run:
    """Return what runs a graph as it is written, or as its twin in float32 where ONNX Runtime lacks its types."""
    return partial(run_graph, open_as_written(twin_of(load_graph(path)) or path, threads))


def run_optimized(model: onnx.ModelProto | Path, threads: int = 0) -> Run:
    return partial(run_graph, open_optimized(model, threads))


def run_graph(session: onnxruntime.InferenceSession, feeds: Feeds) -> Outputs:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))

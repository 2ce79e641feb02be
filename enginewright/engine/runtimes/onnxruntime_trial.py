"""Try a layout in a process of its own: a kernel that crashes or hangs ends that process alone, and sessions that were
open before make others slower."""

from contextlib import closing
from pathlib import Path

from enginewright.core.apart import run_apart
from enginewright.core.scratch import scratch_folder
from enginewright.engine.runtimes.onnxruntime_cuda import open_on_gpu
from enginewright.engine.runtimes.onnxruntime_layout import Layout, Trial, timed
from enginewright.engine.runtimes.onnxruntime_session import GRAPH, optimize, options_for
from enginewright.graph.interface import Blueprint

LONGEST = 300  # seconds: the three trials of a graph took 17 at most, for 18 graphs


def try_in_own_process(onnx: Path, blueprint: Blueprint, layout: Layout) -> Trial:
    return run_apart("the trial", try_out, onnx, blueprint, layout, longest=LONGEST, quiet=True)


def try_out(onnx: Path, blueprint: Blueprint, layout: Layout) -> Trial:
    with scratch_folder() as folder:
        optimize(onnx, folder, blueprint.build, layout)
        with closing(open_on_gpu(folder / GRAPH, blueprint, options_for(threads=0), replays=True)) as session:
            return timed(session, blueprint)

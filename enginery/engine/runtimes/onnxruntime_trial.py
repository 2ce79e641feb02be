"""Try a layout in a process of its own: a kernel that crashes or hangs ends that process alone, and sessions that were
open before make others slower. This module is also the program of that process."""

import pickle
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.core.process import end_with_parent
from enginery.core.scratch import scratch_folder
from enginery.core.text import last_line
from enginery.engine.runtimes.onnxruntime_cuda import open_on_gpu
from enginery.engine.runtimes.onnxruntime_layout import Layout, Trial, timed
from enginery.engine.runtimes.onnxruntime_session import GRAPH, optimize, options_for
from enginery.graph.interface import Blueprint

LONGEST = 300  # seconds: the three trials of a graph took 17 at most, for 18 graphs


def try_in_own_process(onnx: Path, blueprint: Blueprint, layout: Layout) -> Trial:
    with scratch_folder() as scratch:
        asked, answered = scratch / "asked.pickle", scratch / "answered.pickle"
        asked.write_bytes(pickle.dumps((onnx.absolute(), blueprint, layout)))
        command = [sys.executable, "-m", __name__, str(asked), str(answered)]
        try:
            child = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            raise EngineryError(f"it took more than {LONGEST} s") from None
        if child.returncode:
            raise EngineryError(last_line(child.stderr) or f"its process ended with exit code {child.returncode}")
        trial: Trial = pickle.loads(answered.read_bytes())
        return trial


def try_out(onnx: Path, blueprint: Blueprint, layout: Layout) -> Trial:
    with scratch_folder() as folder:
        optimize(onnx, folder, blueprint.build, layout)
        with closing(open_on_gpu(folder / GRAPH, blueprint, options_for(threads=0), replays=True)) as session:
            return timed(session, blueprint)


def main(asked: str, answered: str) -> None:
    end_with_parent()
    trial = try_out(*pickle.loads(Path(asked).read_bytes()))
    Path(answered).write_bytes(pickle.dumps(trial))


if __name__ == "__main__":
    main(*sys.argv[1:])

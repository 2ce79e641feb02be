"""Reduce a graph that a compiler gets wrong to a few nodes, and write a folder that its authors can run."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import onnx

from enginery.core.errors import EngineryError
from enginery.core.files import new_folder
from enginery.core.runtimes import RUNTIMES
from enginery.engine.target import Target
from enginery.graph.onnx_file import count_nodes
from enginery.reduction.case import Case
from enginery.reduction.pages import write_readme, write_script
from enginery.reduction.smallest import smallest
from enginery.reduction.trial import SCRIPT, Fault, run_case

# Executed before the script. OpenVINO's graphs are otherwise read without our cures.
CURES = """\
from pathlib import Path
from enginery.engine.runtimes.openvino import write_ir
write_ir(Path("model.onnx"), Path())"""
FEW = 5  # operations
SLOWEST_TRIAL = 120.0


class Way(NamedTuple):
    """How a runtime is given a graph."""

    target: Target
    limit: float  # the relative error from which on a result is wrong
    cured: bool  # whether OpenVINO gets the graph as an engine of ours does, with what we do about known faults

    @property
    def prepare(self) -> str:
        return CURES if self.cured else ""

    def script(self, headline: str = "") -> str:
        return write_script(self.target, self.limit, headline, self.cured)


def reduce_fault(
    case: Case, way: Way, seconds: float, folder: Path, say: Callable[[str], None] = print
) -> tuple[Case, Fault]:
    """Write the smallest case that was found into the folder. Refuse a graph that the runtime gets right."""
    ends, title = time.monotonic() + seconds, RUNTIMES[way.target.runtime].title
    with tempfile.TemporaryDirectory() as scratch:

        def trial(case: Case, way: Way = way) -> Fault | None:
            left = max(SLOWEST_TRIAL / 10, min(SLOWEST_TRIAL, ends - time.monotonic()))
            return run_case(case, way.script(), Path(scratch), way.prepare, left)

        whole = trial(case)
        if whole is None:
            raise EngineryError(_right(way, title))
        say(f"{title}, {len(case.nodes)} nodes: {whole.kind}: {whole.message}")
        fewest = len(case.nodes)
        # A part may show a fault that the whole does not have. One that our cures cure is surely the one sought.
        cured = way._replace(cured=True)
        is_cured = way.target.runtime == "openvino" and not way.cured and trial(case, cured) is None

        def attempt(make: Callable[[], Case]) -> Case | None:
            nonlocal fewest
            if time.monotonic() > ends:
                return None
            try:
                part = make()
                _ = part.expected
            except Exception:  # a part that ONNX Runtime refuses, in exceptions that share no base class
                return None
            fault = trial(part)
            if fault is None or not fault.is_like(whole) or (is_cured and trial(part, cured)):
                return None
            if len(part.nodes) < fewest:
                fewest = len(part.nodes)
                say(f"{fewest} nodes, {seconds - ends + time.monotonic():.0f} s: {fault.message}")
            return part

        least = smallest(case, attempt)
        plain = way._replace(cured=False)
        fault = trial(least, plain) if way.cured else None
        if fault and fault.is_like(whole):  # also without our cures: an ONNX file says more than OpenVINO's form of it
            way = plain
    with new_folder(folder) as unfinished:
        headline = f"{title} {way.target.runtime_version}: what it makes of {_nodes(least.model)}."
        final = run_case(least, way.script(headline), unfinished, way.prepare, SLOWEST_TRIAL)
        if final is None:
            raise EngineryError(f"the fault does not show each time: {title} was right when it ran these nodes again")
        (unfinished / "README.md").write_text(write_readme(least.model, way.target, final, way.cured))
    return least, final


def require_replaceable(folder: Path) -> None:
    """Refuse to replace anything but what an earlier reduction wrote."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / SCRIPT).is_file()):
        raise EngineryError(f"{folder} exists and was not written by `enginery reduce`: give another folder with --out")


def summary(case: Case, fault: Fault, folder: Path, seconds_left: bool) -> str:
    """Say what was found, in a sentence or two without the last stop."""
    found = f"{folder}: {case.operations} operations in {_nodes(case.model)}: {fault.kind}: {fault.message}"
    if case.operations <= FEW:
        return found
    why = (
        "fewer do not show it, so that each may add a little, as rounding does"
        if seconds_left
        else "the time was over: allow more with --seconds"
    )
    return f"{found}. {why[0].upper()}{why[1:]}"


def _right(way: Way, title: str) -> str:
    hint = "; --without-cures leaves out what is done about known faults" if way.cured else ""
    if RUNTIMES[way.target.runtime].is_tensorrt:
        return (
            f"{title} builds this graph, and only what it refuses is reduced; polygraphy.sh, in the engine's folder, "
            "compares results"
        )
    return f"{title} computes what this graph means, within a relative error of {way.limit:g}{hint}"


def _nodes(model: onnx.ModelProto) -> str:
    counts = count_nodes(model)
    listed = ", ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())
    return f"{len(model.graph.node)} node{'s' * (len(model.graph.node) > 1)} ({listed})"

"""Reduce a graph that a compiler gets wrong to a few nodes, and write a folder that its authors can run."""

import importlib.metadata
import itertools
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES
from enginewright.core.files import new_folder, scratch_folder, templates_in
from enginewright.core.installing import installed_version
from enginewright.core.process import end_with_parent
from enginewright.core.text import last_line
from enginewright.engine.machine import Target
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.onnx_file import count_nodes, save_graph
from tools.reduction.case import Case, smallest

GRAPH, INPUTS, EXPECTED, SCRIPT = "model.onnx", "inputs.npz", "expected.npz", "fails.py"
CURED_GRAPH = "model.xml"  # OpenVINO's own form of a graph, after our cures
TRACEBACK = 1  # Python's exit code for a mistake in a script, or for a package that is missing
DIFFERS, REFUSED, UNCOMPARED = 2, 3, 4  # the script's own exit codes
ALIKE = 0.7  # of two messages, the least share of words that are the same
# Executed before the script. OpenVINO's graphs are otherwise read without our cures.
CURES = f"""\
import openvino, sys
from pathlib import Path
from enginewright.core.text import in_one_line
from enginewright.engine.runtimes.openvino_graph import write_ir
try:
    write_ir(Path("model.onnx"), Path())
except Exception as error:
    print(in_one_line(error))
    sys.exit({REFUSED})"""
FEW = 5  # operations
SLOWEST_TRIAL, SHORTEST_LIMIT = 120.0, 12.0
PATIENCE = 4  # times as long as the whole graph takes: a part that takes longer hangs
TEMPLATES = templates_in(Path(__file__).parent)


def require_replaceable(folder: Path) -> None:
    """Refuse to replace anything but what an earlier reduction wrote."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / SCRIPT).is_file()):
        raise EnginewrightError(
            f"{folder} exists and was not written by `enginewright reduce`: give another folder with --out"
        )


class Fault(NamedTuple):
    kind: Literal["differs", "refused", "crashes", "hangs"]
    message: str  # of the script: its last line

    def is_like(self, other: "Fault") -> bool:
        """Tell whether it may be the same fault. A part of a graph may be refused for another reason than the whole."""
        if self.kind != other.kind or self.kind == "differs":
            return self.kind == other.kind
        mine, theirs = (re.findall(r"[A-Za-z_]{3,}", each.message) for each in (self, other))
        return SequenceMatcher(None, mine, theirs, autojunk=False).ratio() >= ALIKE


class Setup(NamedTuple):
    """The form in which a runtime is given a graph."""

    target: Target
    limit: float  # the relative error from which on a result is wrong
    cured: bool  # whether OpenVINO gets the graph as an engine of ours does, with what we do about known faults

    @property
    def prepare(self) -> str:
        return CURES if self.cured else ""

    def script(self, headline: str = "") -> str:
        facts, target = RUNTIMES[self.target.runtime], self.target
        capabilities = [f"SM{each.replace('.', '')}" for each in target.capabilities]
        return TEMPLATES.get_template(f"{SCRIPT}.j2").render(
            headline=headline,
            cured=self.cured,
            script=SCRIPT,
            differs=DIFFERS,
            refused=REFUSED,
            uncompared=UNCOMPARED,
            model=CURED_GRAPH if self.cured else GRAPH,
            title=facts.title,
            runtime=target.runtime,
            limit=self.limit,
            compares=not facts.builds_without_gpu,
            is_tensorrt=facts.is_tensorrt,
            provider="CUDAExecutionProvider" if target.device == "cuda" else "CPUExecutionProvider",
            capabilities=capabilities if facts.builds_without_gpu else [],
        )


def reduce_fault(
    case: Case, setup: Setup, seconds: float, folder: Path, say: Callable[[str], None] = print
) -> tuple[Case, Fault]:
    """Write the smallest case that was found into the folder. Refuse a graph that the runtime gets right."""
    started, title = time.monotonic(), RUNTIMES[setup.target.runtime].title
    ends, limit = started + seconds, SLOWEST_TRIAL
    with scratch_folder() as scratch:

        def trial(case: Case, setup: Setup = setup) -> Fault | None:
            return run_case(case, setup.script(), scratch, setup.prepare, limit)

        whole = trial(case)
        if whole is None:
            if RUNTIMES[setup.target.runtime].builds_without_gpu:
                advice = "only what it refuses is reduced; polygraphy.sh, in the engine's folder, compares results"
                raise EnginewrightError(f"{title} builds this graph, and {advice}")
            hint = "; --without-cures leaves out what is done about known faults" if setup.cured else ""
            within = f"within a relative error of {setup.limit:g}{hint}"
            raise EnginewrightError(f"{title} computes what this graph means, {within}")
        say(f"{title}, {len(case.nodes)} nodes: {whole.kind}: {whole.message}")
        limit = min(SLOWEST_TRIAL, max(SHORTEST_LIMIT, PATIENCE * (time.monotonic() - started)))
        found = [case]
        # A part may show a fault that the whole does not have. One that our cures cure is surely the one sought.
        cured = setup._replace(cured=True)
        is_cured = setup.target.runtime == "openvino" and not setup.cured and trial(case, cured) is None

        def attempt(make: Callable[[], Case]) -> Case | None:
            if time.monotonic() + limit > ends:  # a trial that is cut short would look like one that hangs
                return None
            try:
                part = make()
                _ = part.expected
            except Exception:  # a part that ONNX Runtime refuses, in exceptions that share no base class
                return None
            try:
                fault = trial(part)
                if fault is None or not fault.is_like(whole) or (is_cured and trial(part, cured)):
                    return None
            except EnginewrightError:  # the script runs for the whole, so that this part has nothing to compare
                return None
            if len(part.nodes) < min(len(each.nodes) for each in found):
                say(f"{len(part.nodes)} nodes, {time.monotonic() - started:.0f} s: {fault.message}")
            found.append(part)
            return part

        found.append(smallest(case, attempt, keeps_values=whole.kind == "differs"))
    return _write_smallest(found, whole, setup, limit, folder)


def _write_smallest(found: list[Case], whole: Fault, setup: Setup, limit: float, folder: Path) -> tuple[Case, Fault]:
    """Write the last of the cases that shows the fault again."""
    title = RUNTIMES[setup.target.runtime].title
    with new_folder(folder) as unfinished:
        # Prefer a case that fails without our cures: an ONNX file says more than OpenVINO's form of it.
        for least, chosen in itertools.product(reversed(found), dict.fromkeys((setup._replace(cured=False), setup))):
            for stale in unfinished.iterdir():
                stale.unlink()
            headline = f"{title} {setup.target.runtime_version}: what it makes of {_nodes(least.model)}."
            final = run_case(least, chosen.script(headline), unfinished, chosen.prepare, limit)
            if final and final.is_like(whole):
                command = write_for_polygraphy(least, setup, unfinished) if setup.target.runtime == "tensorrt" else ""
                readme = write_readme(least.model, setup.target, final, chosen.cured, command)
                (unfinished / "README.md").write_text(readme, encoding="utf-8")
                return least, final
        raise EnginewrightError(
            f"the fault does not show each time: {title} was right when it ran the same nodes again"
        )


def run_case(case: Case, script: str, folder: Path, prepare: str = "", seconds: float = 120) -> Fault | None:
    """Write the case into the folder, and return how the script fails there, or None if all is right.

    `prepare` is Python code that the child process executes before the script.
    """
    watched = f"from {end_with_parent.__module__} import end_with_parent\nend_with_parent()"
    save_graph(case.model, folder / GRAPH)
    for name, runs in ((INPUTS, case.runs), (EXPECTED, case.expected)):
        by_run = {f"{number}:{tensor}": array for number, run in enumerate(runs) for tensor, array in run.items()}
        np.savez(folder / name, **by_run, allow_pickle=False)
    (folder / SCRIPT).write_text(script, encoding="utf-8")
    program = f"{watched}\n{prepare}\nimport runpy\nrunpy.run_path({SCRIPT!r}, run_name='__main__')"
    command = [sys.executable, "-c", program]
    try:
        child = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, errors="replace")
    except subprocess.TimeoutExpired:
        return Fault("hangs", f"no answer within {seconds:.0f} s")
    code, message = child.returncode, last_line(child.stdout)
    if code == TRACEBACK:
        raise EnginewrightError(f"{SCRIPT} cannot run here, which says nothing of the graph: {last_line(child.stderr)}")
    if code == UNCOMPARED:
        raise EnginewrightError(f"{SCRIPT}: {message}: give a graph or samples that return something")
    if code in (REFUSED, DIFFERS):
        return Fault("refused" if code == REFUSED else "differs", message)
    return Fault("crashes", f"signal {-code}" if code < 0 else f"exit code {code}") if code else None


def write_for_polygraphy(case: Case, setup: Setup, folder: Path) -> str:
    """Write the inputs and what is expected as Polygraphy reads them, and return its command."""
    from polygraphy.comparator import IterationResult, RunResults  # here, as they load slowly
    from polygraphy.json import save_json

    expected = [IterationResult(dict(outputs), runner_name="definition") for outputs in case.expected]
    save_json([dict(run) for run in case.runs], str(folder / "inputs.json"), description=None)
    save_json(RunResults([("definition", expected)]), str(folder / "expected.json"), description=None)
    sizes = [(name, [run[name].shape for run in case.runs]) for name in case.runs[0]]
    ends = {"min": min, "opt": max, "max": max}
    shapes = {end: [f"{name}:{list(of(given))}".replace(" ", "") for name, given in sizes] for end, of in ends.items()}
    profile = " ".join(f"--trt-{end}-shapes {shlex.join(given)}" for end, given in shapes.items())
    compared = f"--compare simple --check-error-stat mean --rtol {setup.limit:g} --atol 0"
    inputs = "--load-inputs inputs.json --load-outputs expected.json"
    return f"polygraphy run {GRAPH} --trt --strongly-typed {profile} {inputs} {compared}"


def write_readme(model: onnx.ModelProto, target: Target, fault: Fault, cured: bool, polygraphy: str = "") -> str:
    what = {"differs": "results differ from ONNX's definition", "refused": "a valid graph is refused"}
    return TEMPLATES.get_template("README.md.j2").render(
        title=f"{RUNTIMES[target.runtime].title} {target.runtime_version}",
        what=what.get(fault.kind, f"it {fault.kind}"),
        message=fault.message,
        script=SCRIPT,
        cured=cured,
        polygraphy=polygraphy,
        driver=describe_machine(target.runtime).driver if target.device == "cuda" else "",
        nodes=model.graph.node,
        processor=" ".join(filter(None, (target.device_name or target.device, *target.capabilities))),
        system=platform.platform(),
        python=platform.python_version(),
        numpy=importlib.metadata.version("numpy"),
        reference=installed_version(*RUNTIMES["onnxruntime"].distributions),
    )


def summary(case: Case, fault: Fault, folder: Path, seconds_left: bool) -> str:
    """Say what was found, in a sentence or two without the last stop."""
    found = f"{folder}: {case.operations} operations in {_nodes(case.model)}: {fault.kind}: {fault.message}"
    if case.operations <= FEW:
        return found
    if seconds_left:
        return f"{found}. Fewer do not show it, so that each may add a little, as rounding does"
    return f"{found}. The time was over: allow more with --seconds"


def _nodes(model: onnx.ModelProto) -> str:
    counts = count_nodes(model)
    listed = ", ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())
    return f"{len(model.graph.node)} node{'s' * (len(model.graph.node) > 1)} ({listed})"

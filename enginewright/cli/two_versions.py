"""Judge an upgrade of a runtime: build each precision's graph in two environments on this machine, and say what is
safe, slower or less accurate, and which cures are needed."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright.cli.environment import Side, read_runs, write_runs
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import CONVERTED, VALIDATION_SAMPLES, Record, scratch_folder, templates_in
from enginewright.core.params.all import Params
from enginewright.data.feeds import Outputs, errors_of_samples, middle_of
from enginewright.data.sample_set import SampleSet
from enginewright.engine.machine import Machine
from enginewright.engine.record import Speedup
from enginewright.graph.as_written import run_as_written
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.agreement import distance
from enginewright.measure.race import LAPS, in_other_copies
from enginewright.measure.records import Factor
from enginewright.measure.timing import RESAMPLES, median_interval, whole_machine
from enginewright.precision.cure import CURE, UNCURED, Cure
from enginewright.precision.find_cure import feeds_for
from enginewright.tasks.choose import task_of

PAGE = Path("reports/upgrade.md")
OLD, NEW = "old", "new"
ROUNDS = 5  # of a lap
MORE_ERROR = 1.1  # times the error: less is no loss
JUDGED = 64  # samples


class OtherPython:
    """A process in one of the environments, which answers one question after the other."""

    def __init__(self, python: str, runtime: str) -> None:
        self.python = python
        self.process = Popen([python, "-m", Side.__module__, runtime], stdin=PIPE, stdout=PIPE, text=True)

    def ask(self, what: str, **given: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        try:
            print(json.dumps({"ask": what, **given}), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise EnginewrightError(
                f"{self.python} ended, as said above: it needs Enginewright's extra `device` and the runtime"
            )
        found = json.loads(answer)
        if "error" in found:
            raise RefusedThereError(found["error"])
        return found["answer"]


class RefusedThereError(EnginewrightError):
    """A runtime in another environment cannot do what it was asked for."""


class Outcomes(NamedTuple):
    """What one version makes of a graph."""

    why: str | None  # it has no engine
    error: float  # of the engine beside its graph
    losses: NDArray[np.float64]  # of each sample, beside the graph in float32


class Judged(Record):
    precision: str
    verdict: str
    errors: tuple[float | None, float | None]  # of both engines beside their graph; None: no engine, or no numbers
    losses: tuple[float, float] | None  # the mean error of samples beside the graph in float32
    more_loss: tuple[float, float] | None  # the interval of the difference
    speed: Speedup | None  # of the new one
    cure: str  # whether one is needed, with each version


def judge_upgrade(old: str, new: str, params: Params, confidence: float, say: Callable[[str], None]) -> list[Judged]:
    """Judge each precision that was converted, with the Pythons of both environments, and write the page."""
    graphs = [CONVERTED / name for name in params.precisions if (CONVERTED / name / "model.onnx").exists()]
    if not graphs:
        raise EnginewrightError(f"{CONVERTED} holds no graph: run `dvc repro` first")
    with ExitStack() as opened:
        sides = {OLD: OtherPython(old, params.runtime), NEW: OtherPython(new, params.runtime)}
        for side in sides.values():
            opened.callback(side.process.communicate)
            opened.callback(side.process.kill)
        machines = {name: Machine(**side.ask("describe")) for name, side in sides.items()}
        if machines[OLD].runtime != machines[NEW].runtime:
            raise EnginewrightError("the environments have different runtimes: name one in params.yaml, as runtime")
        opened.enter_context(whole_machine("compare"))
        judged = []
        for converted in graphs:
            judged.append(Judging(converted, params, sides, confidence).judge())
            say(in_words(judged[-1]))
    page = templates_in(Path(__file__).parent).get_template("upgrade.md.j2")
    PAGE.parent.mkdir(exist_ok=True)
    written = page.render(machines=machines, judged=judged, confidence=confidence, in_words=in_words)
    PAGE.write_text(written, encoding="utf-8")
    return judged


class Judging:
    """One precision's graph, without its cure if it has one, and what both versions make of it."""

    def __init__(self, converted: Path, params: Params, sides: Mapping[str, OtherPython], confidence: float) -> None:
        self.precision, self.converted, self.params, self.sides = converted.name, converted, params, sides
        self.confidence, self.rng = confidence, np.random.default_rng(params.benchmark.seed)
        self.limit = params.precisions[self.precision].thresholds.relative_error  # type: ignore[index]
        self.cure = Cure.read(converted / CURE) if (converted / CURE).exists() else None
        samples, how = SampleSet.open(VALIDATION_SAMPLES), params.model
        known = samples.manifest
        self.task = task_of(known.task, how.scores, known.class_names, how.boxes, known.preprocessing)
        self.build = self._build_at(None)
        self.feeds = feeds_for(samples, read_blueprint(converted / "model.onnx", params.build))
        count, batch = min(JUDGED, len(samples)), params.build.profile.batch.max
        places = [np.arange(start, start + batch) % max(count, 1) for start in range(0, count, batch)]
        self.samples = [samples.fed_to(params.build).read_at(each) for each in places]
        exact = run_as_written(Path("artifacts/simplified/model.onnx"))
        self.exact = [exact(samples.read_at(each)) for each in places]

    def _build_at(self, level: int | None) -> dict[str, Any]:
        return self.params.build.at_level(level).model_dump(mode="json", by_alias=True)

    def judge(self) -> Judged:
        with scratch_folder() as scratch:
            graph = self.converted / (UNCURED if self.cure else "model.onnx")
            found = {name: self._built(name, graph, scratch / name) for name in self.sides}
            speed = None if any(each.why for each in found.values()) else self._raced(scratch)
            cure = self._cure(found, scratch)
        losses = more = None
        before, after = (found[name].losses for name in (OLD, NEW))
        if len(before) and len(before) == len(after):
            losses = float(before.mean()), float(after.mean())
            drawn = self.rng.choice(after - before, size=(RESAMPLES, len(after))).mean(axis=1)
            more = middle_of(drawn, self.confidence)
        errors = [each.error if math.isfinite(each.error) else None for each in found.values()]
        return Judged(
            precision=self.precision,
            verdict=self._verdict(found, losses, more, speed),
            errors=(errors[0], errors[1]),
            losses=losses,
            more_loss=more,
            speed=speed,
            cure=cure,
        )

    def _verdict(self, found: Mapping[str, Outcomes], losses: Any, more: Any, speed: Speedup | None) -> str:
        if found[NEW].why:
            return f"refused: {found[NEW].why}"
        if found[NEW].error > self.limit:
            return "wrong"
        if losses and more[0] > 0 and losses[1] > MORE_ERROR * losses[0]:
            return "less accurate"
        if speed and speed.high < 1:
            return "slower"
        return "safe, and faster" if speed and speed.low > 1 else "safe"

    def _cure(self, found: Mapping[str, Outcomes], scratch: Path) -> str:
        """Say which version needs a cure, and whether the one that there is cures the new one."""
        needing = [name for name, each in found.items() if each.why or each.error > self.limit]
        if not needing:
            return "the cure is needed by neither" if self.cure else "none is needed"
        needed = f"needed by the {' and the '.join(needing)} version"
        if self.cure is None or NEW not in needing:
            return needed
        self.build = self._build_at(self.cure.change.optimization_level)
        cured = self._built(NEW, self.converted / "model.onnx", scratch / "cured")
        still = "does not help" if cured.why or cured.error > self.limit else "helps"
        return f"{needed}; that of {self.cure.found_with} {still}"

    def _built(self, name: str, graph: Path, folder: Path) -> Outcomes:
        folder.mkdir()
        save_graph(load_graph(graph), folder / "model.onnx")
        write_runs([*self.feeds, *self.samples], folder / "runs.npz")
        side, given = self.sides[name], {"folder": str(folder.absolute()), "build": self.build}
        try:
            side.ask("build", **given)
            with self._opened(name, folder):
                side.ask("run", folder=given["folder"])
        except RefusedThereError as error:
            return Outcomes(str(error), math.inf, np.empty(0))
        outputs, expected = read_runs(folder / "outputs.npz"), map(run_as_written(folder / "model.onnx"), self.feeds)
        pairs = [self.task.comparable(*pair) for pair in zip([*expected, *self.exact], outputs, strict=True)]
        errors = [distance(*pair) for pair in pairs[: len(self.feeds)]]
        losses = [worst_of_outputs(*pair) for pair in pairs[len(self.feeds) :]]
        return Outcomes(None, max(errors), np.concatenate(losses) if losses else np.empty(0))

    @contextmanager
    def _opened(self, name: str, folder: Path) -> Iterator[OtherPython]:
        side, inference = self.sides[name], self.params.inference.model_dump(mode="json")
        side.ask("open", folder=str(folder.absolute()), build=self.build, inference=inference)
        try:
            yield side
        finally:
            side.ask("close")

    def _raced(self, scratch: Path) -> Speedup:
        """Race both in laps, which open each anew, and in turns: what happens to the machine happens to both."""
        ratios, seconds = list[float](), self.params.benchmark.seconds / LAPS / ROUNDS
        for lap in range(LAPS):
            order = (OLD, NEW) if lap % 2 else (NEW, OLD)
            with ExitStack() as opened:
                sides = {name: opened.enter_context(self._opened(name, scratch / name)) for name in order}
                for _ in range(ROUNDS):
                    taken = {name: median(side.ask("time", seconds=seconds)) for name, side in sides.items()}
                    ratios.append(taken[OLD] / taken[NEW])
        interval = median_interval(np.array(ratios), self.confidence, self.rng)
        middle, low, high = in_other_copies(Factor(median(ratios), *interval))
        return Speedup(middle=middle, low=low, high=high)


def worst_of_outputs(exact: Outputs, got: Outputs) -> NDArray[np.float64]:
    """Return the largest relative error of each sample: in one norm, boxes in pixels would drown scores."""
    errors = [errors_of_samples({name: values}, {name: got[name]}) for name, values in exact.items()]
    return np.asarray(np.max(errors, axis=0))


def in_words(judged: Judged) -> str:
    """Return what was found, in one sentence without its stop."""
    parts = [f"{judged.precision}: {judged.verdict}"]
    if judged.speed:
        parts.append(f"{judged.speed.in_figures()} times as fast")
    if judged.losses and judged.more_loss:
        parts.append(
            f"its error beside fp32 is {judged.losses[1]:.3g} for {judged.losses[0]:.3g}, a difference of "
            f"{judged.more_loss[0]:.2g} to {judged.more_loss[1]:.2g}"
        )
    return "; ".join([*parts, f"cure: {judged.cure}"])

"""Find what makes an engine faster on the GPU at hand: build variants, race each with the best one so far, and keep
what is faster over all batch sizes together and slower at none, as intervals tell. What answers otherwise than the
untuned engine is no engine of the same graph, however fast it is."""

import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Any, NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import BuildParams, Range
from enginewright.data.feeds import Outputs
from enginewright.data.sample_set import SampleSet, checked_feeds
from enginewright.engine.build import DescribedGraph, build_variant
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import FoundHere, Machine, Target
from enginewright.engine.record import EngineRecord, Speedup, Tried, Tuning, TuningPlan, Variant
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.graph.onnx_file import load_graph
from enginewright.graph.passes import changed_by
from enginewright.graph.passes.for_one_compiler import TO_TRY
from enginewright.measure.agreement import distance
from enginewright.measure.comparison import SpeedChange, combine
from enginewright.measure.race import AFTER, BEFORE, FEWEST_LAPS, MOST_LAPS, open_contender, race_sides
from enginewright.measure.timing import Call

RACED = 0.5  # seconds for each side at each batch size, as long as FEWEST_LAPS take
LONGEST_REASON = 200

Turn = Callable[[Variant], Variant]
Knob = Mapping[str, Turn]  # settings of which one is kept, by words


class Offered(NamedTuple):
    """Hold what a version of TensorRT has beside what all have."""

    tiling: Sequence[str] = ()
    routes: Sequence[Sequence[str]] = ()  # of each choice of the compiler all but the default


def knobs(asked: BuildParams, batches: Sequence[int], offered: Offered, changes: Sequence[str]) -> list[Knob]:
    """Return what may make an engine faster, first what is expected to bring most."""
    sizes, options, profiles = asked.profile.batch, asked.tensorrt, dict[str, Turn]()
    if not sizes.fixed:
        own = [{"batch": Range(min=each, opt=each, max=each)} for each in batches]
        profiles[f"a profile for batch {', '.join(map(str, batches))} alone"] = partial(_with_profiles, own)
        if (most := batches[-1]) > sizes.opt:
            largest = {"batch": Range(min=sizes.min, opt=most, max=sizes.max)}
            profiles[f"a profile tuned for batch {most}"] = partial(_with_profiles, [*asked.profiles, largest])
    levels = [{f"optimization level {each}": partial(_with, "optimization_level", each)} for each in (4, 5, 2)]
    graphs = [{name: partial(_with_change, name)} for name in changes]
    return [
        profiles,
        *levels[:2],
        *(graphs if not (options.is_stripped or options.refit) else ()),  # these take the weights of the graph as it is
        {f"tiling {each}": partial(_with, "tiling_optimization_level", each) for each in offered.tiling},
        {"no auxiliary streams": partial(_with, "max_aux_streams", 0)},
        levels[2],
        *({f"route {each}": partial(_with_route, each) for each in choice} for choice in offered.routes),
    ]


def _with(option: str, value: str | int, best: Variant) -> Variant:
    return best.model_copy(update={"build": best.build.with_option(option, value)})


def _with_route(choice: str, best: Variant) -> Variant:
    return _with("build_route", " ".join(filter(None, [best.build.tensorrt.build_route, choice])), best)


def _with_profiles(profiles: Sequence[dict[str, Range]], best: Variant) -> Variant:
    return best.model_copy(update={"build": best.build.model_copy(update={"profiles": tuple(profiles)})})


def _with_change(name: str, best: Variant) -> Variant:
    return best.model_copy(update={"changes": (*best.changes, name)})


def offered_by(library: Any) -> Offered:
    """Ask the bindings."""
    trt = library.trt
    levels = getattr(trt, "TilingOptimizationLevel", None)  # since 10.8
    config = trt.Builder(library.log).create_builder_config()
    routes_text = getattr(config, "all_build_routes", "")  # since 11.1; empty where the library has none
    routes = []
    for each in json.loads(routes_text)["tuner_options"] if routes_text else ():
        listed = re.search(r"\[([^]]*)\]", each["allowed_values"])  # as in [on|off]; a range without end has dots
        values = listed[1].split("|") if listed and "..." not in listed[1] else []
        routes.append([f"{each['option']}={value}" for value in values if value != str(each["default_value"])])
    return Offered([name.lower() for name in getattr(levels, "__members__", ()) if name != "NONE"], routes)


class Built(NamedTuple):
    variant: Variant
    folder: Path
    record: EngineRecord


@dataclass
class TuningSearch:
    graph: DescribedGraph
    target: Target
    plan: TuningPlan
    samples: SampleSet  # of the calibration: those of the validation judge engines
    scratch: Path
    here: Machine = field(init=False)
    batches: list[int] = field(init=False)
    confidence: float = field(init=False)
    race_seconds: float = field(init=False)  # of the last race, and before it of the longest that is usual
    count: int = field(default=0, init=False)

    def run(self, asked: BuildParams, graph_sha256: str) -> tuple[Path, EngineRecord, Tuning]:
        """Turn one knob at a time. A build begins if the time is left that the last one and two races took."""
        if not len(self.samples):
            raise EnginewrightError("build.tensorrt.tune needs calibration samples, and samples.calibration is 0")
        benchmark, tuned = self.plan.benchmark, {each.batch.opt for each in asked.all_profiles[1:]}
        self.here, self.batches = describe_machine(self.target.runtime), sorted({*benchmark.batches, *tuned})
        self.race_seconds = 2 * min(RACED, benchmark.seconds) * len(self.batches) * MOST_LAPS / FEWEST_LAPS
        untuned = best = self.built(Variant(build=asked))
        answers, started = self.answers(untuned), time.monotonic()
        tried, not_tried, last = list[Tried](), list[str](), untuned.record.build_seconds
        model = load_graph(self.graph.onnx)
        changes = [name for name, change in TO_TRY.items() if changed_by(model, change)]
        all_knobs = knobs(asked, self.batches, offered_by(load_runtime(self.target.runtime)), changes)
        self.confidence = 1 - (1 - benchmark.confidence) / sum(map(len, all_knobs))  # of so many races none may err
        for knob in all_knobs:
            for words, turn in knob.items():
                variant = turn(best.variant)
                if variant == best.variant:
                    continue
                left = self.plan.seconds - (time.monotonic() - started) - 2 * self.race_seconds
                if left < last:
                    not_tried.append(words)
                    continue
                one, other = self.tried(words, variant, best, answers, left)
                print(f"{self.graph.precision}: tuning, {one.in_words()}", flush=True)
                tried.append(one)
                last = one.build_seconds
                if other and one.kept:
                    best = other
                    break
        raced = self.raced(untuned, best) if best is not untuned else []
        times, slower = self.figures(raced, benchmark.confidence) if raced else (None, ())
        if not is_faster(times, slower):  # what seemed faster step by step may not be, as a whole
            tried, best, raced = [one.model_copy(update={"kept": False}) for one in tried], untuned, []
            times = None
        tuning = Tuning(
            precision=self.graph.precision,
            **self.here.model_dump(include={*FoundHere.model_fields}),
            graph_sha256=graph_sha256,
            asked=asked,
            best=best.variant,
            times=times,
            at_batch={each.batch: each.times(benchmark.confidence) for each in raced if each.batch},
            error=max(map(distance, answers, self.answers(best))),
            tried=tuple(tried),
            not_tried=tuple(not_tried),
            seconds=round(time.monotonic() - started, 1),
        )
        return best.folder, best.record, tuning

    def built(self, variant: Variant, longest: float | None = None) -> Built:
        self.count += 1
        folder, graph = self.scratch / str(self.count) / "engine", replace(self.graph, longest=longest)
        folder.parent.mkdir()
        return Built(variant, folder, build_variant(graph, self.target, variant, folder))

    def tried(
        self, words: str, variant: Variant, best: Built, answers: Sequence[Outputs], longest: float
    ) -> tuple[Tried, Built | None]:
        """Build a variant, compare its answers with those of the untuned engine, and race it with the best one."""
        started = time.monotonic()
        one, other = partial(Tried, change=words), None
        try:
            other = self.built(variant, longest)
            error = max(map(distance, answers, self.answers(other)))
            if error <= self.plan.limit:
                times, slower = self.figures(self.raced(best, other), self.confidence)
                one = partial(one, times=times, slower_at=slower, kept=is_faster(times, slower))
            else:
                one = partial(one, why_not="it answers otherwise than the untuned engine")
            one = partial(one, error=error if math.isfinite(error) else None)
        except EnginewrightError as problem:  # it is refused, takes too long, or needs too much memory
            one = partial(one, why_not=shorten(str(problem), LONGEST_REASON))
        return one(build_seconds=other.record.build_seconds if other else round(time.monotonic() - started, 3)), other

    def answers(self, one: Built) -> list[Outputs]:
        """Return what an engine answers at all sizes that count."""
        build = one.variant.build
        sizes = sorted({*self.batches, build.profile.batch.min, build.profile.batch.max})
        feeds = [*checked_feeds(self.samples, build.profile), *map(self.samples.tuned(build).cycled, sizes)]
        with open_engine(one.folder, self.here, self.plan.inference) as engine:
            return [engine.run(each) for each in feeds]

    def raced(self, one: Built, other: Built) -> list[SpeedChange]:
        """Race two engines by the time of their compute: no variant has other copies."""
        started, asked = time.monotonic(), self.plan.benchmark
        params = asked.model_copy(update={"seconds": min(RACED, asked.seconds), "batches": tuple(self.batches)})
        sides = {
            side: partial(open_contender, each.folder, self.here, self.plan.inference)
            for side, each in {BEFORE: one, AFTER: other}.items()
        }
        samples = self.samples.tuned(one.variant.build)
        changes = race_sides(sides, samples, params, f"tuning, {self.graph.precision}", median_compute)
        self.race_seconds = time.monotonic() - started
        return [*changes.values()]

    def figures(self, raced: Sequence[SpeedChange], confidence: float) -> tuple[Speedup, tuple[int, ...]]:
        """Return how many times as fast it is over all batch sizes, and those at which it surely is slower."""
        usual = self.plan.benchmark.confidence
        slower = tuple(each.batch for each in raced if each.batch and each.times(usual).high < 1)
        return combine(raced).times(confidence), slower


def is_faster(times: Speedup | None, slower_at: Sequence[int]) -> bool:
    return times is not None and times.low > 1 and not slower_at


def median_compute(calls: Sequence[Call]) -> float:
    """Return the seconds without copies, where a device measured them."""
    return median(call.seconds if call.compute is None else call.compute for call in calls)

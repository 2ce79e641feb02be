"""Everything the pipeline measured, one entry per precision, and what led to it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import QUANTIZED
from enginewright.core.params.all import Params
from enginewright.engine.machine import Machine
from enginewright.engine.record import EngineRecord, Refusal, read_refusal
from enginewright.engine.tools import Tools
from enginewright.graph.simplify import Simplification
from enginewright.measure import records
from enginewright.measure.timing import broken_limits, machine_problems
from enginewright.precision.calibration.cache import Calibration
from enginewright.precision.cure import CURE, Cure
from enginewright.precision.floats import Conversion, Left
from enginewright.precision.records import MIX, RESCUE, SEARCH, Mix, Rescue, Search

MOST_DEVIATION = 1.1  # how many times one rate may be the other if the race and the throughput pass agree


@dataclass(frozen=True)
class Evidence:
    """The engine of one precision, and what was measured of it."""

    engine: EngineRecord
    validation: records.Validation
    benchmark: records.Benchmark
    trace: records.Trace
    mix: Mix | None = None  # of the precision best
    floats: tuple[Left, ...] = ()  # what a quantized graph leaves there
    cure: Cure | None = None
    unfused: tuple[str, ...] = ()  # where the model had Q/DQ nodes of its own

    @property
    def precision(self) -> str:
        return self.engine.precision

    @property
    def delivers(self) -> bool:
        """Tell whether it is faster than what it is mixed of, as far as a race can tell; what is no mix always is."""
        return self.mix is None or self.mix.delivers

    @property
    def measured(self) -> records.Measurement:
        return records.Measurement(
            precision=self.precision,
            engine_bytes=self.engine.bytes,
            files=self.engine.files,
            executed_as_asked=self.engine.share_as_asked,
            asked_by=self.engine.onnx_sha256,
            validation=self.validation,
            benchmark=self.benchmark,
        )

    def latency(self, batch: int, contender: str = records.ENGINE) -> records.Latency:
        return next(entry for entry in self.benchmark.latencies if (entry.batch, entry.contender) == (batch, contender))

    def throughputs(self, batch: int) -> list[records.Throughput]:
        """Return what the throughput pass measured at a batch size, the fewest requests in flight first."""
        return sorted((each for each in self.benchmark.throughput if each.batch == batch), key=lambda one: one.requests)

    def images_per_second(self, measured: records.Throughput) -> float:
        """Return the rate: with one request in flight that of the race, with several that of the throughput pass."""
        return self.latency(measured.batch).images_per_second if measured.requests == 1 else measured.images_per_second

    def gain(self, measured: records.Throughput) -> float:
        """Return how many times the rate of one request this is. Both took turns in the throughput pass."""
        return measured.images_per_second / self.throughputs(measured.batch)[0].images_per_second

    def contradicts_race(self, measured: records.Throughput) -> bool:
        """Tell whether the throughput pass and the race found different rates for one request in flight."""
        in_pass = self.throughputs(measured.batch)[0].images_per_second
        times = in_pass / self.latency(measured.batch).images_per_second
        return not 1 / MOST_DEVIATION <= times <= MOST_DEVIATION

    def ratio(self, batch: int, baseline: str) -> records.Ratio:
        return next(entry for entry in self.benchmark.ratios if (entry.batch, entry.baseline) == (batch, baseline))


def known_p99(timed: records.Latency | records.Throughput) -> float | None:
    """Return p99, or None: from few calls it is hardly more than the slowest of them."""
    return timed.p99 if timed.runs >= records.RUNS_FOR_P99 else None


@dataclass(frozen=True)
class Findings:
    machine: Machine
    precisions: tuple[Evidence, ...]
    race: records.EnginesRace
    refused: Mapping[str, Refusal] = field(default_factory=dict)  # by precision: why there is no engine of it
    failures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by precision, as failures_of finds them

    @property
    def kind(self) -> str:
        """Return what the samples are called."""
        return self.precisions[0].validation.kind

    @property
    def batches(self) -> list[int]:
        return list(dict.fromkeys(entry.batch for entry in self.precisions[0].benchmark.latencies))

    @property
    def baselines(self) -> list[str]:
        return list(dict.fromkeys(entry.baseline for entry in self.precisions[0].benchmark.ratios))

    @property
    def throughput_contradicts_race(self) -> bool:
        return any(entry.contradicts_race(one) for entry in self.precisions for one in entry.benchmark.throughput)

    @property
    def floats(self) -> list[Evidence]:
        """Return the precisions that are not quantized and did not run as another type."""
        return [one for one in self.precisions if one.precision not in QUANTIZED and one.engine.runs_its_precision]

    def quoted(self, entry: Evidence) -> records.Factor:
        """Return the speed at which a precision is quoted, in the race with all others: beside the first baseline."""
        return self.race.times(entry.precision, self.baselines[0])

    def times(self, one: Evidence, other: Evidence) -> records.Factor:
        """Return how many times as fast one engine is as another."""
        return self.race.times(one.precision, other.precision)

    def fastest(self, entries: Sequence[Evidence]) -> Evidence:
        """Return the one that no other beats, or that is beaten by least. Ratios to PyTorch scatter too much."""
        return max(entries, key=lambda one: min(self.times(one, other).median for other in entries))

    def why_noisy(self, entry: Evidence, ratio: records.Ratio) -> list[str]:
        """Return why this ratio of a precision is noisy; nothing if it is not."""
        return broken_limits(ratio, entry.benchmark) + self.machine_reasons(entry)

    def machine_reasons(self, entry: Evidence) -> list[str]:
        """Return what was wrong with the machine while this precision was timed, at any batch size."""
        found, pace = machine_problems(entry.benchmark), entry.benchmark.pace.microseconds
        best = min(one.benchmark.pace.microseconds or float("inf") for one in self.precisions)
        if pace and pace > records.SAME_PACE * best:
            found.append(f"the machine was {best / pace:.2f} times as fast as for another precision")
        if pace is None:
            found.append("the machine never kept to one pace")
        return found


class EvidencePaths(NamedTuple):
    """Where the stages left what they made: folders with something for each precision, and two files."""

    engines: Path
    converted: Path
    validation: Path
    benchmark: Path
    trace: Path
    race: Path
    machine: Path


def gather_findings(precisions: Iterable[str], places: EvidencePaths) -> Findings:
    """Read the listed precisions, not whatever the folders hold: a precision that was dropped leaves its files."""
    refused, found = dict[str, Refusal](), list[Evidence]()
    for name in precisions:
        if refusal := read_refusal(places.engines / name):
            refused[name] = refusal
            continue
        mix, converted, cure = (places.converted / name / file for file in (MIX, "convert.json", CURE))
        conversion = Conversion.read(converted)
        evidence = Evidence(
            EngineRecord.read(places.engines / name / "engine.json"),
            records.Validation.read(places.validation / f"{name}.json"),
            records.Benchmark.read(places.benchmark / name / "summary.json"),
            records.Trace.read(places.trace / f"{name}.json"),
            Mix.read(mix) if mix.exists() else None,
            conversion.floats,
            Cure.read(cure) if cure.exists() else None,
            conversion.unfused,
        )
        found.append(evidence)
    if not found:
        raise EnginewrightError(f"no precision was built: {'; '.join(each.why for each in refused.values())}")
    raced = records.EnginesRace.read(places.race)
    for entry in found:
        sets = [[(ratio.baseline, ratio.batch) for ratio in each.benchmark.ratios] for each in (found[0], entry)]
        if sets[0] != sets[1]:
            raise EnginewrightError(
                f"{places.benchmark}: {entry.precision} was raced against other baselines or at other batch sizes than "
                f"{found[0].precision}; run `dvc repro` to measure again"
            )
        if entry.precision not in raced.milliseconds:
            raise EnginewrightError(f"{places.race} lacks {entry.precision}; run `dvc repro` to race all engines")
    return Findings(Machine.read(places.machine), tuple(found), raced, refused)


@dataclass(frozen=True)
class Background:
    """What led to the engines: parameters, simplification, calibration, searches and tools."""

    params: Params
    simplification: Simplification
    calibration: Calibration
    tools: Tools
    rescues: Mapping[str, Rescue]  # by precision, as are searches
    searches: Mapping[str, Search]


def gather_background(params: Params, simplified: Path, calibrated: Path, converted: Path, tools: Path) -> Background:
    return Background(
        params,
        Simplification.read(simplified / "simplify.json"),
        Calibration.read(calibrated / "calibration.json"),
        Tools.read(tools),
        {name: Rescue.read(found) for name in params.search if (found := converted / name / RESCUE).exists()},
        {name: Search.read(found) for name in params.precisions if (found := converted / name / SEARCH).exists()},
    )

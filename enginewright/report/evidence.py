"""Everything the pipeline measured, one entry per precision, and what led to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import QUANTIZED
from enginewright.core.params.all import Params
from enginewright.engine.machine import Machine
from enginewright.engine.record import EngineRecord, read_refusal
from enginewright.engine.tools import Tools
from enginewright.measure.records import (
    ENGINE,
    RUNS_FOR_P99,
    Benchmark,
    EnginesRace,
    Factor,
    Latency,
    Measurement,
    Ratio,
    Throughput,
    Trace,
    Validation,
)
from enginewright.precision.calibration.cache import Calibration
from enginewright.precision.calibration.histogram import Histograms, Sketch
from enginewright.precision.floats import Conversion, Left
from enginewright.precision.records import MIX, RESCUE, SEARCH, Mix, Rescue, Search

MOST_DEVIATION = 1.1  # how many times one rate may be the other if the race and the throughput pass agree


@dataclass(frozen=True)
class Evidence:
    """The engine of one precision, and what was measured of it."""

    engine: EngineRecord
    validation: Validation
    benchmark: Benchmark
    trace: Trace
    mix: Mix | None = None  # of the precision best
    floats: tuple[Left, ...] = ()  # what a quantized graph leaves there

    @property
    def precision(self) -> str:
        return self.engine.precision

    @property
    def delivers(self) -> bool:
        """Tell whether it is faster than what it is mixed of, as far as a race can tell; what is no mix always is."""
        return self.mix is None or self.mix.delivers

    @property
    def measured(self) -> Measurement:
        return Measurement(
            precision=self.precision,
            engine_bytes=self.engine.bytes,
            files=self.engine.files,
            executed_as_asked=self.engine.share_as_asked,
            asked_by=self.engine.onnx_sha256,
            validation=self.validation,
            benchmark=self.benchmark,
        )

    def latency(self, batch: int, contender: str = ENGINE) -> Latency:
        return next(entry for entry in self.benchmark.latencies if (entry.batch, entry.contender) == (batch, contender))

    def throughputs(self, batch: int) -> list[Throughput]:
        """Return what the throughput pass measured at a batch size, the fewest requests in flight first."""
        return sorted((each for each in self.benchmark.throughput if each.batch == batch), key=lambda one: one.requests)

    def images_per_second(self, measured: Throughput) -> float:
        """Return the rate: with one request in flight that of the race, with several that of the throughput pass."""
        return self.latency(measured.batch).images_per_second if measured.requests == 1 else measured.images_per_second

    def gain(self, measured: Throughput) -> float:
        """Return how many times the rate of one request this is. Both took turns in the throughput pass."""
        return measured.images_per_second / self.throughputs(measured.batch)[0].images_per_second

    def contradicts_race(self, measured: Throughput) -> bool:
        """Tell whether the throughput pass and the race found different rates for one request in flight."""
        in_pass = self.throughputs(measured.batch)[0].images_per_second
        times = in_pass / self.latency(measured.batch).images_per_second
        return not 1 / MOST_DEVIATION <= times <= MOST_DEVIATION

    def ratio(self, batch: int, baseline: str) -> Ratio:
        return next(entry for entry in self.benchmark.ratios if (entry.batch, entry.baseline) == (batch, baseline))


def known_p99(timed: Latency | Throughput) -> float | None:
    """Return p99, or None: from few calls it is hardly more than the slowest of them."""
    return timed.p99 if timed.runs >= RUNS_FOR_P99 else None


@dataclass(frozen=True)
class Findings:
    machine: Machine
    precisions: tuple[Evidence, ...]
    race: EnginesRace
    refused: Mapping[str, str] = field(default_factory=dict)  # by precision: why there is no engine of it

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

    @property
    def tuned_batch(self) -> int:
        """Return the batch size of the race, at which speeds are quoted."""
        return self.race.batch

    def quoted(self, entry: Evidence) -> Factor:
        """Return the speed at which a precision is quoted, in the race with all others: beside the first baseline."""
        return self.race.times(entry.precision, self.baselines[0])

    def times(self, one: Evidence, other: Evidence) -> Factor:
        """Return how many times as fast one engine is as another."""
        return self.race.times(one.precision, other.precision)


def gather_findings(
    precisions: Sequence[str],
    engines: Path,
    validation: Path,
    benchmark: Path,
    trace: Path,
    race: Path,
    machine: Path,
    converted: Path,
) -> Findings:
    """Read the listed precisions, not whatever the folders hold: a precision that was dropped leaves its files."""
    refused = {name: refusal.why for name in precisions if (refusal := read_refusal(engines / name))}
    if refused.keys() >= set(precisions):
        raise EnginewrightError(f"no precision was built: {'; '.join(refused.values())}")
    found = tuple(
        Evidence(
            EngineRecord.read(engines / name / "engine.json"),
            Validation.read(validation / f"{name}.json"),
            Benchmark.read(benchmark / name / "summary.json"),
            Trace.read(trace / f"{name}.json"),
            Mix.read(found) if (found := converted / name / MIX).exists() else None,
            Conversion.read(converted / name / "convert.json").floats,
        )
        for name in precisions
        if name not in refused
    )
    sets = [[(ratio.baseline, ratio.batch) for ratio in entry.benchmark.ratios] for entry in found]
    for entry, its_set in zip(found, sets, strict=True):
        if its_set != sets[0]:
            raise EnginewrightError(
                f"{benchmark}: {entry.precision} was raced against other baselines or at other batch sizes than "
                f"{found[0].precision}; run `dvc repro` to measure again"
            )
    raced = EnginesRace.read(race)
    if missing := {entry.precision for entry in found} - raced.milliseconds.keys():
        raise EnginewrightError(f"{race} lacks {', '.join(sorted(missing))}; run `dvc repro` to race all engines")
    return Findings(Machine.read(machine), found, raced, refused)


BULK = 0.999  # the share of magnitudes that counts as the bulk; outliers lie beyond it
RESHAPES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")  # these change no value


class Simplified(Protocol):
    """What was recorded of the graph before and after simplifying."""

    @property
    def nodes_before(self) -> Mapping[str, int]: ...

    @property
    def nodes_after(self) -> Mapping[str, int]: ...


class Maker(NamedTuple):
    """The node that makes a tensor, and the first tensor that the node reads."""

    kind: str
    name: str
    reads: str | None

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


@dataclass(frozen=True)
class Background:
    """What led to the engines: parameters, simplification, calibration, searches and tools."""

    params: Params
    simplification: Simplified
    calibration: Calibration
    histograms: Histograms
    tools: Tools
    makers: Mapping[str, Maker]
    rescues: Mapping[str, Rescue]  # by precision, as are searches
    searches: Mapping[str, Search]

    @property
    def drawn_tensors(self) -> list[str]:
        """The tensors whose histograms are drawn, those that lose most to quantization first: a tensor loses more the
        more of it is clipped, then the less of its range the bulk of its values fills."""
        sketches = self.histograms.tensors
        drawn = [name for name in sketches if not self._repeats_another(name)]
        return sorted(drawn, key=lambda name: (-sketches[name].clipped, _filled_share(sketches[name])))

    def _repeats_another(self, name: str) -> bool:
        """Tell whether the tensor is only another shape of a tensor with the same range."""
        maker, amax = self.makers.get(name), self.calibration.amax
        if maker is None or maker.kind not in RESHAPES or maker.reads not in self.histograms.tensors:
            return False
        return amax[name] == amax[maker.reads]


def gather_background(
    params: Params, simplified: Simplified, graph: Path, calibrated: Path, converted: Path, tools: Path
) -> Background:
    return Background(
        params,
        simplified,
        Calibration.read(calibrated / "calibration.json"),
        Histograms.read(calibrated / "histograms.json"),
        Tools.read(tools),
        makers_of(onnx.load(graph, load_external_data=False).graph),
        {name: Rescue.read(found) for name in params.search if (found := converted / name / RESCUE).exists()},
        {name: Search.read(found) for name in params.search if (found := converted / name / SEARCH).exists()},
    )


def makers_of(graph: onnx.GraphProto) -> dict[str, Maker]:
    return {
        name: Maker(node.op_type, node.name, node.input[0] if node.input else None)
        for node in graph.node
        for name in node.output
    }


def _filled_share(sketch: Sketch) -> float:
    """Return the share of the tensor's range that the bulk of its magnitudes fills."""
    total, seen = sum(sketch.counts), 0
    for number, count in enumerate(sketch.counts, start=1):
        seen += count
        if seen >= BULK * total:
            return number * sketch.width / (sketch.largest or 1)
    return 1.0

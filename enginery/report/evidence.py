"""Everything the pipeline found out, one entry per precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from enginery.accuracy.records import Validation
from enginery.core.errors import EngineryError
from enginery.engine.machine import Machine
from enginery.engine.record import EngineRecord, Layer
from enginery.regression.measurements import Measured
from enginery.speed.layer_times import Trace
from enginery.speed.records import ENGINE, Benchmark, Latency, Ratio, Throughput

MOST_STRAY = 1.1


@dataclass(frozen=True)
class Evidence:
    engine: EngineRecord
    validation: Validation
    benchmark: Benchmark
    trace: Trace

    @property
    def precision(self) -> str:
        return self.engine.precision

    @property
    def measured(self) -> Measured:
        return Measured(
            precision=self.precision,
            engine_bytes=self.engine.bytes,
            files=self.engine.files,
            executed_as_asked=self.engine.share_as_asked,
            validation=self.validation,
            benchmark=self.benchmark,
        )

    @property
    def is_what_it_says(self) -> bool:
        """Whether any arithmetic ran in the precision asked for; if none did, its figures belong to another one."""
        return self.engine.ran_as is None

    @property
    def is_known(self) -> bool:
        """A compiler that has no GPU at hand cannot tell yet what will be executed."""
        return bool(self.engine.executed)

    @property
    def compute_layers(self) -> list[Layer]:
        return [layer for layer in self.engine.layers if layer.computes]

    @property
    def not_as_asked(self) -> list[Layer]:
        """The layers that carry arithmetic and run in another precision."""
        return [layer for layer in self.compute_layers if layer.precision not in self.engine.as_asked]

    @property
    def raced(self) -> list[tuple[str, int]]:
        return [(entry.baseline, entry.batch) for entry in self.benchmark.ratios]

    def latency(self, batch: int, contender: str = ENGINE) -> Latency:
        return next(entry for entry in self.benchmark.latencies if (entry.batch, entry.contender) == (batch, contender))

    def flights(self, batch: int) -> list[Throughput]:
        """What was asked for with so many requests in flight, the fewest first."""
        return sorted((each for each in self.benchmark.throughput if each.batch == batch), key=lambda one: one.requests)

    def rate(self, flight: Throughput) -> float:
        """Images per second, as measured: one at a time in the race, more at once in a pass of their own."""
        return self.latency(flight.batch).images_per_second if flight.requests == 1 else flight.images_per_second

    def gain(self, flight: Throughput) -> float:
        """On one at a time, which took turns with it."""
        return flight.images_per_second / self.flights(flight.batch)[0].images_per_second

    def strays(self, flight: Throughput) -> bool:
        """Whether the machine was another in the pass than in the race: both asked for one at a time."""
        alone = self.flights(flight.batch)[0].images_per_second / self.latency(flight.batch).images_per_second
        return not 1 / MOST_STRAY <= alone <= MOST_STRAY

    def ratio(self, batch: int, baseline: str) -> Ratio:
        return next(entry for entry in self.benchmark.ratios if (entry.batch, entry.baseline) == (batch, baseline))


@dataclass(frozen=True)
class Findings:
    machine: Machine
    precisions: tuple[Evidence, ...]

    @property
    def batches(self) -> list[int]:
        return list(dict.fromkeys(entry.batch for entry in self.precisions[0].benchmark.latencies))

    @property
    def baselines(self) -> list[str]:
        return list(dict.fromkeys(entry.baseline for entry in self.precisions[0].benchmark.ratios))

    @property
    def flights_stray(self) -> bool:
        """Of any precision, at any batch size."""
        return any(entry.strays(flight) for entry in self.precisions for flight in entry.benchmark.throughput)

    @property
    def tuned_batch(self) -> int:
        """The batch size that one figure per precision is quoted at: the one that engines are tuned for, if raced."""
        optimum = self.precisions[0].engine.profile.batch.opt
        return optimum if optimum in self.batches else max(self.batches)


def gather(
    precisions: Sequence[str], engines: Path, validation: Path, benchmark: Path, trace: Path, machine: Path
) -> Findings:
    """Read what is listed, never what lies in the folder: a precision that was dropped leaves its files behind."""
    found = tuple(
        Evidence(
            EngineRecord.read(engines / name / "engine.json"),
            Validation.read(validation / f"{name}.json"),
            Benchmark.read(benchmark / name / "summary.json"),
            Trace.read(trace / f"{name}.json"),
        )
        for name in precisions
    )
    for entry in found:
        if entry.raced != found[0].raced:
            raise EngineryError(
                f"{benchmark}: {entry.precision} was raced against other baselines or at other batch sizes than "
                f"{found[0].precision}; run `dvc repro` to measure again"
            )
    return Findings(Machine.read(machine), found)

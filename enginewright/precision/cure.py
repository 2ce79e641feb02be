"""The JSON document of a cure: what makes a compiler get a graph right, for which version on which device, and the
evidence. The stages that follow one import this file, and nothing of how it is found."""

from collections.abc import Iterable

from enginewright.core.facts import RUNTIMES
from enginewright.core.files import Record
from enginewright.core.text import counted, first_few
from enginewright.engine.machine import Machine

CURE = "cure.json"  # beside a graph that is cured


class Change(Record):
    """What makes a compiler get a graph right: another spelling, another optimization level, or an island."""

    spelling: str | None = None  # the name of a pass
    optimization_level: int | None = None  # of TensorRT
    nodes: tuple[str, ...] = ()  # that are kept in high precision
    in_float32: bool = False  # these; without it, they only read what is not rounded

    def in_words(self) -> str:
        if self.spelling:
            return f"the pass {self.spelling}"
        if self.optimization_level is not None:
            return f"optimization level {self.optimization_level}"
        if not self.nodes:
            return "nothing changed"
        return f"{first_few(self.nodes)} in {'float32' if self.in_float32 else 'floating point'}"

    def keeping(self, nodes: Iterable[str]) -> "Change":
        return self.model_copy(update={"nodes": tuple(nodes)})


class Price(Record):
    """What a cure costs, in a race."""

    batch: int
    milliseconds: tuple[float, float]  # of the engine, and of the cured one
    speed: tuple[float, float, float]  # of the cured engine, where the engine's is 1: the middle, low and high

    def in_words(self) -> str:
        times = "from {:.3f} to {:.3f} ms".format(*self.milliseconds)
        return f"at batch {self.batch} it goes {times}, {{:.3f}} ({{:.3f}} to {{:.3f}}) times the speed".format(
            *self.speed
        )


class Cure(Record):
    """cures/PRECISION.json: what cures an engine that differs from its graph, for which compiler, and the evidence."""

    precision: str
    change: Change
    operations: tuple[str, ...]  # the types of the nodes
    runtime: str
    runtime_version: str
    device_name: str
    limit: float  # of the relative error, from which on an engine is wrong
    refused: bool  # whether there was no engine
    error: float | None  # of the engine beside its graph; None if its outputs are no numbers, or there was none
    error_cured: float
    price: Price | None  # None where there was no engine to race
    builds: int

    def fits(self, machine: Machine) -> bool:
        found_with = self.runtime, self.runtime_version, self.device_name
        return found_with == (machine.runtime, machine.runtime_version, machine.device_name)

    @property
    def found_with(self) -> str:
        return f"{RUNTIMES[self.runtime].title} {self.runtime_version} on {self.device_name}"

    def in_words(self) -> str:
        """Return what was wrong, what cures it, and what that costs, in one sentence without its stop."""
        was = "gave no numbers" if self.error is None else f"differed from its graph by {self.error:.2g}"
        found = f"{self.found_with} refused its graph" if self.refused else f"its engine of {self.found_with} {was}"
        operations = f" ({', '.join(dict.fromkeys(self.operations))})" if self.operations else ""
        now = f"with {self.change.in_words()}{operations} it differs by {self.error_cured:.2g}"
        price = f"; {self.price.in_words()}" if self.price else ""
        return f"{found}, and {now}, where {self.limit:g} is allowed{price} ({counted(self.builds, 'build')})"


class Cures(Record):
    """Those that fit a machine, by precision."""

    cures: dict[str, Cure]

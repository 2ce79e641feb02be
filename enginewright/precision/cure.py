"""Record what makes a compiler get a graph right, with the evidence, for one version and one device. The stages
that follow it import this file, and nothing of how it is found."""

from collections.abc import Iterable

from enginewright.core.files import Record
from enginewright.core.text import counted, first_few
from enginewright.engine.machine import FoundHere

CURE = "cure.json"  # beside a graph that is cured


class Change(Record):
    """Another spelling, another optimization level of TensorRT, or an island; if it has none of them, another build."""

    spelling: str | None = None  # the name of a pass
    optimization_level: int | None = None
    nodes: tuple[str, ...] = ()  # that are kept in high precision
    in_float32: bool = False  # these; without it, they only read what is not rounded

    def in_words(self) -> str:
        level = self.optimization_level
        other = self.spelling or (f"optimization level {level}" if level is not None else "another build")
        kept = f"{first_few(self.nodes)} in {'float32' if self.in_float32 else 'floating point'}"
        return kept if self.nodes else other

    def keeping(self, nodes: Iterable[str]) -> "Change":
        return self.model_copy(update={"nodes": tuple(nodes)})


class Cure(FoundHere):
    """cures/PRECISION.json. A graph that was refused, and so has no engine, has no error and no times before."""

    precision: str
    change: Change
    operations: tuple[str, ...]  # the types of the nodes
    error: float | None  # of the engine beside its graph; None, too, if its outputs are no numbers
    error_cured: float
    batch: int  # of the race
    milliseconds: tuple[float, float] | None  # of the engine, and of the cured one
    speed: tuple[float, float, float] | None  # of the cured one, where the engine's is 1: the middle, low and high
    builds: int

    def in_words(self) -> str:
        """Return what was wrong, what cures it, and what that costs, in one sentence without its stop."""
        was = "gave no numbers" if self.milliseconds else "was refused"
        wrong = was if self.error is None else f"differed from its graph by {self.error:.2g}"
        which = f"{self.change.in_words()}{f' ({first_few(sorted({*self.operations}))})' if self.operations else ''}"
        price = (
            ""
            if not (self.milliseconds and self.speed)
            else (
                f"; at batch {self.batch} it takes {self.milliseconds[1]:.3f} ms for {self.milliseconds[0]:.3f}, "
                "{:.3f} ({:.3f} to {:.3f}) times the speed".format(*self.speed)
            )
        )
        return (
            f"by {self.found_with} it {wrong}, and with {which} it differs by {self.error_cured:.2g}{price}; found in "
            f"{counted(self.builds, 'build')}"
        )


class Cures(Record):
    by_precision: dict[str, Cure]

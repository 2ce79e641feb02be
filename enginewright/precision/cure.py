"""Record what makes a compiler get a graph right, with the evidence, for one version and one device."""

from enginewright.core.files import Record
from enginewright.core.text import counted, first_few
from enginewright.engine.machine import FoundHere

CURE, UNCURED = "cure.json", "uncured.onnx"  # beside a graph that is cured


class GraphChange(Record):
    """Another spelling, another optimization level of TensorRT, or an island; if it has none of them, another build."""

    spelling: str | None = None  # the name of a pass
    optimization_level: int | None = None
    nodes: tuple[str, ...] = ()  # that are kept in high precision, or apart
    in_float32: bool = False  # these; without it, they only read what is not rounded
    apart: bool = False  # these, in the precision that they have: the compiler fuses them with nothing that follows

    def in_words(self) -> str:
        level = self.optimization_level
        other = self.spelling or (f"optimization level {level}" if level is not None else "another build")
        how = "apart from what follows" if self.apart else f"in {'float32' if self.in_float32 else 'floating point'}"
        kept = f"{first_few(self.nodes)} {how}"
        return kept if self.nodes else other


class Remedy(Record):
    change: GraphChange
    operations: tuple[str, ...]  # the types of the nodes
    error: float | None  # of the engine beside its graph; None, too, if it was built where it does not run
    milliseconds: float | None
    speed: tuple[float, float, float] | None  # where the uncured engine's is 1: the middle, low and high

    def in_words(self) -> str:
        types = f" ({first_few(sorted({*self.operations}))})" if self.operations else ""
        return f"{self.change.in_words()}{types}"


class Cure(FoundHere):
    """cures/PRECISION.json. A graph that was refused, and so has no engine, has no error and no times before."""

    precision: str
    remedies: tuple[Remedy, ...]  # the fastest first
    error: float | None  # of the engine beside its graph; None, too, if its outputs are no numbers
    batch: int  # of the race
    milliseconds: float | None  # of the engine
    builds: int

    @property
    def change(self) -> GraphChange:
        return self.remedies[0].change

    def in_words(self) -> str:
        """Return what was wrong, what cures it, and what that costs, in one sentence without its stop."""
        was = "gave no numbers" if self.milliseconds else "was refused"
        wrong = was if self.error is None else f"differed from its graph by {self.error:.2g}"
        (best, *others), price = self.remedies, ""
        if best.speed:
            price = f"; at batch {self.batch} it takes {best.milliseconds:.3f} ms for {self.milliseconds:.3f}, "
            price += "{:.3f} ({:.3f} to {:.3f}) times the speed".format(*best.speed)
        timed = [each for each in others if each.milliseconds]
        price += "".join(f"; {each.in_words()} takes {each.milliseconds:.3f} ms" for each in timed)
        does = "is built" if best.error is None else f"differs by {best.error:.2g}"
        right = f"with {best.in_words()} it {does}{price}"
        return f"by {self.found_with} it {wrong}, and {right}; found in {counted(self.builds, 'build')}"


class Cures(Record):
    by_precision: dict[str, Cure]

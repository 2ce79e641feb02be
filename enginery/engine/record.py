"""engine.json: everything that is known of an engine."""

from enginery.core.files import sha256_of
from enginery.core.params.build import BuildParams, Profile
from enginery.core.params.model import NO_SCORES
from enginery.core.params.preprocessing import Preprocessing
from enginery.core.precisions import accepted_as
from enginery.core.record import Record
from enginery.engine.target import Target
from enginery.graph.interface import Blueprint, Interface


class Layer(Record):
    """One operation as the runtime executes it, after fusion."""

    name: str
    kind: str
    precision: str
    computes: bool


class EngineRecord(Record):
    """engine.json: all that is needed to load an engine safely and to feed it, without torch or the repository."""

    precision: str
    target: Target
    build: BuildParams
    files: dict[str, str]
    bytes: int
    onnx_sha256: str
    onnx_bytes: int
    interface: Interface
    layers: tuple[Layer, ...]
    build_seconds: float
    preprocessing: Preprocessing | None
    class_names: tuple[str, ...]
    scores: str | None  # model.scores, as params.yaml has it

    @property
    def blueprint(self) -> Blueprint:
        return Blueprint(self.interface, self.build)

    @property
    def profile(self) -> Profile:
        return self.build.profile

    @property
    def names_classes(self) -> bool:
        return bool(self.class_names) and self.scores != NO_SCORES

    @property
    def identity(self) -> str:
        """Another one after each build: it covers the hashes of the files, and all else that is written here."""
        return sha256_of(self.model_dump(mode="json"))

    @property
    def executed(self) -> dict[str, int]:
        """How many of the layers that carry the arithmetic run in which precision; none if that is not known."""
        precisions = [layer.precision for layer in self.layers if layer.computes]
        return {name: precisions.count(name) for name in sorted(set(precisions), key=precisions.count, reverse=True)}

    @property
    def ran_as(self) -> str | None:
        """Another precision than its own, if it is known that none of its arithmetic ran in that."""
        return None if self.share_as_asked else next(iter(self.executed), None)

    @property
    def as_asked(self) -> tuple[str, ...]:
        return accepted_as(self.precision, self.build.tf32)

    @property
    def share_as_asked(self) -> float:
        """The share of compute layers that run in the precision the engine is named after."""
        return sum(self.executed.get(name, 0) for name in self.as_asked) / max(1, sum(self.executed.values()))


class LayerTime(Layer):
    """The median over calls; 0 where the runtime has nothing to do for the layer."""

    milliseconds: float

"""engine.json: all that is known of an engine, and what its layers really run in."""

from collections import Counter
from typing import Annotated

from pydantic import Field

from enginewright.core.files import sha256_of
from enginewright.core.params.boxes import BoxesParams
from enginewright.core.params.build import BuildParams, Profile
from enginewright.core.params.model import NO_SCORES
from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.precisions import accepted_as
from enginewright.core.record import Record
from enginewright.core.tasks import CLASSIFICATION
from enginewright.core.text import file_size
from enginewright.data.manifest import PreparedTexts
from enginewright.engine.target import Target
from enginewright.graph.interface import Blueprint, Interface

FileName = Annotated[str, Field(pattern=r"^[^/\x00]+$")]  # in the engine's folder, or beside the graph
UNKNOWN = "unknown"  # the kind or precision of a layer that the runtime does not describe


class Layer(Record):
    """One operation as the runtime executes it, after fusion."""

    name: str
    kind: str
    precision: str
    computes: bool
    profile: int = 0  # of TensorRT's optimization profiles, each of which has layers of its own


class EngineRecord(Record):
    """engine.json: all that is needed to load an engine safely and to feed it, without torch or the repository."""

    precision: str
    target: Target
    build: BuildParams
    files: dict[FileName, str]
    bytes: int  # without the files of `weights`
    # hashes of the files that a stripped plan takes its weights from
    weights: dict[FileName, str] = Field(default_factory=dict)
    graph_sha256: str | None = None  # of the graph but for its weights, if others may be put in
    onnx_sha256: str
    onnx_bytes: int
    interface: Interface
    layers: tuple[Layer, ...]  # in the profile that accepts all sizes
    tuned_layers: tuple[Layer, ...] = ()  # in build.profiles
    build_seconds: float
    preprocessing: Preprocessing | None
    text: PreparedTexts | None = None
    class_names: tuple[str, ...]
    scores: str | None  # model.scores of params.yaml
    task: str = CLASSIFICATION
    boxes: BoxesParams = BoxesParams()  # model.boxes

    @property
    def blueprint(self) -> Blueprint:
        return Blueprint(self.interface, self.build)

    @property
    def profile(self) -> Profile:
        return self.build.profile

    @property
    def size_in_words(self) -> str:
        """Say how large the engine is, and what it takes its weights from."""
        return file_size(self.bytes) + (f" and {file_size(self.onnx_bytes)} of weights" if self.weights else "")

    @property
    def names_classes(self) -> bool:
        return bool(self.class_names) and self.scores != NO_SCORES

    @property
    def identity(self) -> str:
        """Return a hash of this record. Each build gives another one, since it covers the hashes of the files."""
        return sha256_of(self.model_dump(mode="json"))

    @property
    def compute_layers(self) -> list[Layer]:
        return [layer for layer in self.layers if layer.computes]

    @property
    def known_layers(self) -> list[Layer]:
        """Return the compute layers whose precision the runtime tells."""
        return [layer for layer in self.compute_layers if layer.precision != UNKNOWN]

    @property
    def layers_are_known(self) -> bool:
        """Tell whether it is known what the engine runs in. A compiler without a GPU cannot tell what a GPU will
        execute, and an inspector may hide the types of layers."""
        return bool(self.share_as_asked or self.ran_as)

    @property
    def executed(self) -> dict[str, int]:
        """Count the compute layers by the precision that they run in, the most frequent first."""
        return dict(Counter(layer.precision for layer in self.compute_layers).most_common())

    @property
    def accepted(self) -> tuple[str, ...]:
        """Return the precisions that a layer may run in to count as asked."""
        return accepted_as(self.precision, self.build.tf32)

    @property
    def not_as_asked(self) -> list[Layer]:
        """Return the compute layers that run in another precision than the engine's."""
        return [layer for layer in self.known_layers if layer.precision not in self.accepted]

    @property
    def share_as_asked(self) -> float:
        """Return the share of the compute layers of a known precision that run in the engine's."""
        layers = self.known_layers
        return (len(layers) - len(self.not_as_asked)) / max(1, len(layers))

    @property
    def ran_as(self) -> str | None:
        """Return the precision that took the place of the engine's, if no compute layer runs in the engine's. A layer
        of unknown precision might."""
        return None if self.share_as_asked or UNKNOWN in self.executed else next(iter(self.executed), None)

    @property
    def runs_its_precision(self) -> bool:
        """Tell whether any compute layer runs in the engine's precision, or may. If not, its speed is another one's."""
        return self.ran_as is None


class Refusal(Record):
    """refused.json, in the place of an engine: why there is none of this precision for the GPUs at hand."""

    precision: str
    why: str


class LayerTime(Layer):
    """A layer and its median time over several calls, which is 0 where the runtime has nothing to do for it."""

    milliseconds: float

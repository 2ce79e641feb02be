"""The folder of an engine: its record, engine.json, with what its layers really run in, and the check of its files."""

import difflib
import re
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import Field

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import CLASSIFICATION, accepted_as
from enginewright.core.files import ENGINES, Record, sha256, sha256_of
from enginewright.core.params.build import BenchmarkParams, BuildParams, InferenceParams, Profile
from enginewright.core.params.model import NO_SCORES, BoxesParams
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import file_size, first_few
from enginewright.data.sample_set import PreparedTexts
from enginewright.engine.machine import FoundHere, Target
from enginewright.graph.files import graph_sha256
from enginewright.graph.interface import Blueprint, Interface, TensorSpec

FileName = Annotated[str, Field(pattern=r"^[^/\x00]+$")]  # in the engine's folder, or beside the graph
TUNED_GRAPH = "tuned.onnx"  # the graph of an engine that is faster with another one
RECORD, REPRODUCE, REFUSED = "engine.json", "reproduce.sh", "refused.json"
BUNDLED = "engine"  # the folder of the engine inside a bundle
WEIGHTS = "model.onnx"  # the graph whose weights an engine takes that has none, and the data file that it refers to
BETWEEN_NAMES = re.compile(r"\s*(?:,|\+|\|\|)\s*")  # the name of a fused layer lists its nodes
# By OpenVINO, which may name a product in bytes after its scales alone, and by ONNX Runtime for layouts and fusions.
ADDED_ENDING = re.compile(r"/WithoutBiases$|(?:/WithoutBiases)?/Dequantization\w+$|_token_\d+$|_nchwc$|/\w+Fusion/$")
UNKNOWN = "unknown"  # the kind or precision of a layer that the runtime does not describe


class Layer(Record):
    """One operation as the runtime executes it, after fusion."""

    name: str
    kind: str
    precision: str
    computes: bool
    profile: int = 0  # of TensorRT's optimization profiles, each of which has layers of its own


class Speedup(Record):
    """How many times as fast one engine is as another, and the interval of that."""

    middle: float
    low: float
    high: float

    def in_figures(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"


class Variant(Record):
    """A way to build an engine of a graph."""

    build: BuildParams
    changes: tuple[str, ...] = ()  # of the graph, by the names of passes


class Tried(Record):
    """A variant of an engine, and how it did beside the best one before it."""

    change: str
    build_seconds: float
    why_not: str | None = None  # why it was not raced
    error: float | None = None  # of its outputs beside those of the untuned engine
    times: Speedup | None = None  # over all batch sizes
    slower_at: tuple[int, ...] = ()  # batch sizes at which it surely is
    kept: bool = False

    def in_words(self) -> str:
        slower = f", slower at batch {', '.join(map(str, self.slower_at))}" if self.slower_at else ""
        how = f"{self.times.in_figures()} times as fast{slower}" if self.times else self.why_not
        return f"{self.change}: {how}{', kept' if self.kept else ''}"


class Tuning(FoundHere):
    """tuned/PRECISION.json: what a search found to be faster with one compiler, on one device, for one graph."""

    precision: str
    graph_sha256: str  # without the values of weights: no kernel depends on them
    asked: BuildParams
    best: Variant
    times: Speedup | None  # over the engine as asked, at all batch sizes; None if nothing was kept
    at_batch: dict[int, Speedup]
    error: float  # of its outputs beside those of that engine
    tried: tuple[Tried, ...]
    not_tried: tuple[str, ...]  # for want of time
    seconds: float

    def in_words(self) -> str:
        """Return what it brings and what was tried, in one sentence without its stop."""
        kept = " and ".join(each.change for each in self.tried if each.kept)
        at = ", ".join(f"{times.middle:.2f} at batch {batch}" for batch, times in self.at_batch.items())
        brings = f"{kept} make it {self.times.in_figures()} times as fast ({at})" if self.times else "nothing was kept"
        rest = "; ".join(each.in_words() for each in self.tried if not each.kept)
        short = f"; no time was left for {first_few(self.not_tried)}" if self.not_tried else ""
        not_kept = f"; not kept: {rest}" if rest else ""
        return f"{brings}, found by {self.found_with} in {self.seconds:.0f} s{not_kept}{short}"


class TuningPlan(Record):
    """artifacts/tuning/PRECISION.json: how to tune an engine, and what the file in tuned/ says, if it fits."""

    seconds: float
    benchmark: BenchmarkParams
    inference: InferenceParams
    limit: float  # of the relative error to the untuned engine
    found: Tuning | None


class EngineRecord(Record):
    """engine.json: all that is needed to load an engine safely and to feed it, without torch or the repository."""

    precision: str
    target: Target
    build: BuildParams
    files: dict[FileName, str]
    bytes: int  # without the files of `weights`
    weights: dict[FileName, str] = Field(default_factory=dict)  # from which a stripped plan takes them, with hashes
    graph_sha256: str | None = None  # of the graph but for its weights, if others may be put in
    onnx_sha256: str
    onnx_bytes: int
    interface: Interface
    apart: tuple[TensorSpec, ...] = ()  # that a cure keeps from being fused away: outputs more, which nobody reads
    layers: tuple[Layer, ...]  # in the profile that accepts all sizes
    tuned_layers: tuple[Layer, ...] = ()  # in build.profiles
    build_seconds: float
    preprocessing: Preprocessing | None
    text: PreparedTexts | None = None
    class_names: tuple[str, ...]
    scores: str | None  # model.scores of params.yaml
    task: str = CLASSIFICATION
    boxes: BoxesParams = BoxesParams()  # model.boxes
    remark: str | None = None  # why `build` is not what params.yaml asks for
    tuning: Tuning | None = None

    @property
    def blueprint(self) -> Blueprint:
        return Blueprint(self.interface, self.build, self.apart)

    @property
    def profile(self) -> Profile:
        return self.build.profile

    @property
    def size_in_words(self) -> str:
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
        return [layer for layer in self.compute_layers if layer.precision != UNKNOWN]

    @property
    def layers_are_known(self) -> bool:
        """Tell whether it is known what the engine runs in. A compiler without a GPU, or an inspector, may not tell."""
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
        return [layer for layer in self.known_layers if layer.precision not in self.accepted]

    @property
    def share_as_asked(self) -> float:
        """Return the share of the compute layers of a known precision that run in the engine's."""
        layers = self.known_layers
        return (len(layers) - len(self.not_as_asked)) / max(1, len(layers))

    @property
    def ran_as(self) -> str | None:
        """Return what took the place of the engine's precision, if no compute layer runs in it, or may."""
        return None if self.share_as_asked or UNKNOWN in self.executed else next(iter(self.executed), None)

    @property
    def runs_its_precision(self) -> bool:
        """Tell whether any compute layer runs in the engine's precision, or may. If not, its speed is another one's."""
        return self.ran_as is None


class Refusal(Record):
    """refused.json, in the place of an engine: why there is none of this precision."""

    precision: str
    why: str
    failed: bool = False  # whether the compiler failed, where others would not


class LayerTime(Layer):
    """A layer and its median time over several calls, which is 0 where the runtime has nothing to do for it."""

    milliseconds: float


def read_engine(folder: Path) -> EngineRecord:
    """Return the record of the engine, and refuse it if a file is damaged or missing. An engine is executable code, and
    a runtime's own checks miss damage: the hashes are checked before anything else."""
    require_engine(folder)
    record = EngineRecord.read(folder / RECORD)
    cure = "Run `dvc repro` to build it again, or `dvc checkout` to restore it"
    for name, expected in record.files.items():
        file = folder / name
        if not file.exists():
            raise EnginewrightError(f"{file} is missing. {cure}")
        if sha256(file) != expected:
            raise EnginewrightError(f"{file} is damaged: its hash differs from the one in engine.json. {cure}")
    return record


def require_weights(record: EngineRecord, folder: Path) -> None:
    """Refuse an engine without weights if the files that have them are missing, or are not those of its build."""
    for name, expected in record.weights.items():
        file = weights_of(folder).with_name(name)
        if not file.exists() or sha256(file) != expected:
            state = "has another hash than engine.json says" if file.exists() else "is missing"
            raise EnginewrightError(
                f"{folder} has no weights of its own (build.tensorrt.weights: stripped), and {file}, which has them, "
                f"{state}: put the file there that has sha256 {expected[:12]}, or build the engine again"
            )


def weights_of(folder: Path) -> Path:
    """Return the graph whose weights an engine takes: in its folder, or beside that, where a bundle has it."""
    beside = folder.resolve().parent / WEIGHTS
    return beside if beside.exists() and not (folder / WEIGHTS).exists() else folder / WEIGHTS


def read_refusal(folder: Path) -> Refusal | None:
    return Refusal.read(folder / REFUSED) if (folder / REFUSED).is_file() else None


def pass_on_refusal(engine: Path, report: Path) -> bool:
    """Tell whether there is no engine to measure. The refusal is then written in the place of its measurements."""
    refusal = read_refusal(engine)
    if refusal:
        refusal.write(report)
        print(f"{refusal.precision}: was not built, so there is nothing to measure")
    return refusal is not None


def require_made_of(record: EngineRecord, precision: str, onnx: Path) -> None:
    """Refuse an engine of another graph or precision: it might agree with PyTorch and would prove nothing."""
    if record.precision != precision or record.onnx_sha256 != graph_sha256(onnx):
        raise EnginewrightError(f"the engine was not built as {precision} of {onnx}: run `dvc repro` to build it again")


def require_engine(folder: Path) -> None:
    if (folder / RECORD).is_file():
        return
    if refusal := read_refusal(folder):
        raise EnginewrightError(f"{folder} has no engine: {refusal.why}")
    if (inner := folder / BUNDLED / RECORD).is_file():
        raise EnginewrightError(f"{folder} is a bundle, whose engine is {inner.parent}: give that folder")
    # A user who writes a bare name may mean an engine beside the folder, or one of the pipeline's.
    found = [record.parent for place in (ENGINES, folder.parent) for record in sorted(place.glob(f"*/{RECORD}"))]
    near = {engine.name: engine for engine in found}
    nearest = difflib.get_close_matches(folder.name, near, n=1, cutoff=0.4)
    cure = f"; did you mean {near[nearest[0]]}?" if nearest else f": `dvc repro` makes one per precision, in {ENGINES}"
    what = f"{folder} is not an engine's folder" if folder.exists() else f"there is no engine {folder}"
    raise EnginewrightError(f"{what}{cure}")


def node_names(layer: Layer) -> list[str]:
    """Return the names of the graph's nodes that became this layer."""
    names = (ADDED_ENDING.sub("", name) for name in BETWEEN_NAMES.split(layer.name))
    return list(dict.fromkeys(name for name in names if name)) or [layer.kind]


def short_name(layer: Layer) -> str:
    """Return the name of the main node, and how many nodes were fused with it."""
    main, *fused = node_names(layer)
    if len(main) > 48:
        main = f"{main[:24]}...{main[-24:]}"
    return main + (f" and {len(fused)} fused" if fused else "")


def short_kind(layer: Layer) -> str:
    """Return the kind without the name of the kernel, which follows it in TensorRT's layers."""
    return layer.kind.partition(" ")[0]

"""The sections `model`, with `model.boxes`, `weights` and `export`."""

import json
import re
from contextlib import suppress
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from enginewright.core.params.section import Section, Share

# The section `model.boxes`: how the outputs of a detector become boxes.

Form = Literal["xyxy", "xywh", "cxcywh", "detr", "rtdetr", "yolov5", "yolov8", "end_to_end", "chosen"]
OF_QUERIES = ("detr", "rtdetr")  # forms whose boxes are shares, and are not found several times
CHOSEN_ALREADY = ("end_to_end", "chosen")  # forms of models that choose among their boxes themselves
CHOSEN_OUTPUTS = ("boxes", "scores", "classes", "count")  # of an engine that chooses itself


class BoxesParams(Section):
    form: Literal["auto"] | Form = "auto"
    """auto: found by shape and name"""
    unit: Literal["auto", "pixels", "shares"] = "auto"
    """pixels of the input, or shares of its height and width; auto: shares for detr and rtdetr"""
    score: float = Field(default=0.05, ge=0, lt=1)
    """boxes with less are dropped"""
    iou: Share = 0.5
    """of two boxes of a class that overlap by more, the better one is kept"""
    most: int = Field(default=100, ge=1, le=1000)
    """boxes in an image, the best ones; COCO's mAP counts 100"""
    nms: Literal["outside", "graph"] = "outside"
    """what chooses among boxes: the code after the engine, or the engine itself, which then returns boxes, scores and
    classes of fixed size, and their count"""
    sure: float = Field(default=0.3, ge=0, lt=1)
    """from this score on boxes are shown, and compared with PyTorch's"""

    @property
    def chooses_in_graph(self) -> bool:
        return self.nms == "graph"

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.chooses_in_graph and self.form in CHOSEN_ALREADY:
            raise ValueError(f"nms: graph chooses boxes, and those of the form {self.form} are chosen: set outside")
        if self.sure < self.score:
            raise ValueError(f"sure is {self.sure}, and boxes are found from score on, {self.score}: it may be no less")
        return self


MODEL = re.compile(r"\w+|\w+(\.\w+)*:\w+")
LIBRARY = re.compile(r"(timm):([\w.]+)|(transformers):([\w./-]+)")
HUB = re.compile(r"timm:(?:hf[-_]hub:)?([^:/]+/[^:/]+)")
NO_SCORES = "none"  # what model.scores is for a model that has no score per class


class ModelParams(Section):
    """The model: torchvision's or timm's by its name, a folder that transformers reads, the user's own
    `package.module:factory`, or an ONNX file in data/models."""

    source: str = "resnet18"
    """any torchvision classifier or segmenter, timm:NAME, transformers:data/models/FOLDER, package.module:factory, or
    data/models/FILE.onnx"""
    arguments: dict[str, Any] = Field(default={})
    """of the factory, or of torchvision's"""
    scores: str | None = Field(default=None, min_length=1)
    """the name of the output that the task reads, with a score per class; null: found by shape; none: there is none,
    and only errors and cosine are judged"""
    boxes: BoxesParams = BoxesParams()
    """how the outputs of a detector become boxes, see docs/how-to/detection.md"""

    @field_validator("arguments")
    @classmethod
    def _stay_the_same_in_json(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Refuse what JSON changes: `weights` reads the arguments from YAML, and later stages read them from JSON."""
        for name, value in arguments.items():
            read_again = object()
            with suppress(TypeError, ValueError):
                read_again = json.loads(json.dumps(value, allow_nan=False))
            if read_again != value:
                raise ValueError(
                    f"{name} is {value!r}, which no record keeps: write text, finite numbers, true, false, null, lists "
                    "and sections of those, and names and dates in quotes"
                )
        return arguments

    @field_validator("source")
    @classmethod
    def _is_one_of_three(cls, source: str) -> str:
        if LIBRARY.fullmatch(source):
            return source
        if hub := HUB.fullmatch(source):
            raise ValueError(
                f"'{source}' is a name of the hub, from which nothing is downloaded: where there is a network, run "
                f"torch.save(timm.create_model('hf-hub:{hub[1]}', pretrained=True).state_dict(), FILE), then set "
                "it to timm:ARCHITECTURE, and weights.source to data/weights/FILE"
            )
        if not source.endswith(".onnx") and (not MODEL.fullmatch(source) or ".py:" in source):
            raise ValueError(
                f"'{source}' is neither a torchvision model, nor package.module:factory, nor data/models/FILE.onnx, "
                "nor timm:NAME, nor transformers:data/models/FOLDER"
            )
        return source

    @property
    def is_onnx(self) -> bool:
        return self.source.endswith(".onnx")

    @property
    def is_factory(self) -> bool:
        return ":" in self.source and not self.is_onnx and self.library is None

    @property
    def library(self) -> str | None:
        """Return timm or transformers, if the model is one of theirs."""
        return self.source.partition(":")[0] if LIBRARY.fullmatch(self.source) else None

    @property
    def library_name(self) -> str:
        """Return what follows timm: or transformers:, a name or a folder."""
        return self.source.partition(":")[2]


class TrainingParams(Section):
    size: int = Field(default=64, ge=1)
    """train on images of this size; statistics and the last layer are fitted once more at crop"""
    epochs: int = Field(default=4, ge=0)
    """0 fits only BatchNorm's statistics and the last layer, for models too large to train here"""
    batch: int = Field(default=32, ge=2)
    """images per step"""
    learning_rate: float = Field(default=0.003, gt=0)
    """the highest one"""
    seed: int = Field(default=0, ge=0)
    """of the training"""
    device: Literal["cpu", "cuda"] = "cpu"
    """cuda is many times as fast, but the weights differ from run to run"""


class WeightsParams(Section):
    source: str = "train"
    """train, pretrained (downloaded from torchvision), a checkpoint data/weights/FILE, or given: the weights that a
    factory or an ONNX file has"""
    training: TrainingParams = TrainingParams()
    """for train"""


class ExportParams(Section):
    # PyTorch's exporter writes none older, and TensorRT 10 supports none newer.
    opset: int = Field(default=20, ge=18, le=24)
    """of ONNX, 18 to 24"""

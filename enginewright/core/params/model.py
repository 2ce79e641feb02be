import json
import re
from contextlib import suppress
from typing import Any

from pydantic import Field, field_validator

from enginewright.core.params.boxes import BoxesParams
from enginewright.core.params.section import Section

MODEL = re.compile(r"\w+|\w+(\.\w+)*:\w+")
LIBRARY = re.compile(r"(timm):([\w.]+)|(transformers):([\w./-]+)")
HUB = re.compile(r"timm:(?:hf[-_]hub:)?([^:/]+/[^:/]+)")
NO_SCORES = "none"  # what model.scores is for a model that has no score per class


class ModelParams(Section, place="model"):
    """The model: torchvision's or timm's by its name, a folder that transformers reads, the user's own
    `package.module:factory`, or an ONNX file in data/models."""

    source: str
    arguments: dict[str, Any]
    scores: str | None = Field(default=None, min_length=1)
    boxes: BoxesParams = BoxesParams()

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

from typing import Literal

from pydantic import Field

from enginewright.core.params.section import Section


class TrainingParams(Section):
    size: int = Field(ge=1)
    epochs: int = Field(ge=0)
    batch: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    seed: int = Field(ge=0)
    device: Literal["cpu", "cuda"]


class WeightsParams(Section, place="weights"):
    source: str
    training: TrainingParams

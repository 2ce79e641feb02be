from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.params.section import Section
from enginewright.core.params.text import TextPreprocessing


def _names_or_file(given: Any) -> Any:
    listed = isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given)
    if given is not None and not isinstance(given, str) and not listed:
        raise ValueError(f"write null, a file, or a list of names (numbers in quotes), not {given!r}")
    return given


Size = Annotated[int, Field(ge=1)]


class SamplesParams(Section, place="samples"):
    source: str
    class_names: Annotated[str | tuple[str, ...] | None, BeforeValidator(_names_or_file)] = None
    ignore: int = Field(default=255, ge=0, le=65535)
    input: str = Field(default="input", min_length=1)
    seed: int = Field(ge=0)
    validation: int = Field(ge=1)
    training: int = Field(ge=0)
    calibration: int = Field(ge=1)
    preprocessing: Preprocessing | None
    text: TextPreprocessing | None = None
    values: dict[str, Size | Annotated[tuple[Size, ...], Field(min_length=1)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _are_of_one_kind(self) -> Self:
        if self.text and self.preprocessing:
            raise ValueError("preprocessing: is for images, and samples.text for texts: set one of the two to null")
        return self

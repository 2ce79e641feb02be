"""The base of every section of params.yaml."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.reading import explain, read_yaml, section_at

PARAMS_FILE = Path("params.yaml")
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A frozen, validated part of params.yaml.

    A stage reads only the sections that it needs, so that a change of another section does not concern it. The stage
    `machine` reads all of them and checks what they must agree on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    place: ClassVar[str]

    def __init_subclass__(cls, place: str = "", **settings: Any) -> None:
        """Take from the line `class` where the section stands in params.yaml, such as build.profile."""
        super().__init_subclass__(**settings)
        cls.place = place

    @classmethod
    def read(cls, file: Path = PARAMS_FILE) -> Self:
        return cls.read_at(cls.place, file)

    @classmethod
    def read_at(cls, place: str, file: Path = PARAMS_FILE) -> Self:
        """Read the section that stands at `place`, such as build.profile."""
        try:
            return cls.model_validate(section_at(place, read_yaml(file), file))
        except ValidationError as error:
            raise EnginewrightError(f"{file}: {explain(error, cls, place)}") from None

"""fleet.yaml: the machines to build and race on, and how each is reached."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from typing_extensions import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.section import read_yaml
from enginewright.core.text import suggestion

FLEET = Path("fleet.yaml")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]  # of a target: it names a file, too


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Target(_Entry):
    """The machine that `enginewright fleet` runs on, or one that ssh reaches, perhaps as a node of a Ray cluster, which
    then says its address and keeps it free."""

    name: Name
    ray: str | None = Field(default=None, min_length=1)  # the resource that the node was started with
    ssh: str | None = Field(default=None, pattern=r"^[^-\s]\S*$")  # as the command takes it: no option of it
    python: str = Field(default="python3", pattern=r"^[\w./+~-]+$")  # the command there: 3.10 or later
    price_per_hour: float | None = Field(default=None, gt=0)  # in any currency, the same for all


class Fleet(_Entry):
    cluster: str | None = None  # HOST:PORT of the head of the Ray cluster
    targets: tuple[Target, ...]

    @classmethod
    def read(cls, file: Path = FLEET) -> Self:
        if not file.exists():
            raise EnginewrightError(f"{file} does not exist: list targets in it, as docs/how-to/machines.md shows")
        try:
            return cls.model_validate(read_yaml(file))
        except ValidationError as error:
            raise EnginewrightError(f"{file}: {'; '.join(map(_sentence, error.errors()))}") from None

    @field_validator("targets", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not all(isinstance(each, dict | None) for each in given.values()):
            raise ValueError("targets: write `NAME: {}`, `NAME: {ray: RESOURCE}` or `NAME: {ssh: HOST}` for each")
        return tuple({**(each or {}), "name": str(name)} for name, each in given.items())

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if not self.targets:
            raise ValueError("targets is empty: list one at least")
        if self.cluster is None and (on_nodes := [one.name for one in self.targets if one.ray]):
            raise ValueError(f"cluster is missing, HOST:PORT of the Ray cluster that {', '.join(on_nodes)} belongs to")
        return self

    def price(self, name: str) -> float | None:
        return next((target.price_per_hour for target in self.targets if target.name == name), None)

    def only(self, names: tuple[str, ...]) -> Self:
        """Return the fleet with these targets, or with all if none is named."""
        known = [target.name for target in self.targets]
        for name in names:
            if name not in known:
                raise EnginewrightError(f"{FLEET} has no target '{name}'{suggestion(name, known)}")
        return self.model_copy(update={"targets": tuple(one for one in self.targets if one.name in (names or known))})


def _sentence(error: ErrorDetails) -> str:
    place = ".".join(map(str, error["loc"])) or "the file"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {error['msg'][0].lower()}{error['msg'][1:]}, got {error['input']!r}"

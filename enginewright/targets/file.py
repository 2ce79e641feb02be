"""fleet.yaml: the machines to build and race on, and how each is reached."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from typing_extensions import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.section import read_yaml
from enginewright.core.text import suggestion

FLEET = Path("fleet.yaml")
KINDS = ("here", "ray", "runner")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]  # of a target: it names a file, too


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Target(_Entry):
    name: Name
    price_per_hour: float | None = Field(default=None, gt=0)  # in any currency, the same for all


class Here(_Target):
    """The machine that `enginewright fleet` runs on."""

    kind: Literal["here"]


class OnNode(_Target):
    """A node of a Ray cluster, which has this resource."""

    kind: Literal["ray"]
    resource: str = Field(min_length=1)


class OnRunner(_Target):
    """A runner of the CI with this label: its nightly job answers, by a commit."""

    kind: Literal["runner"]
    label: str = Field(min_length=1)


Target = Annotated[Here | OnNode | OnRunner, Field(discriminator="kind")]


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

    @model_validator(mode="after")
    def _targets_can_be_told_apart(self) -> Self:
        if not self.targets:
            raise ValueError("targets is empty: list one at least")
        for what, values in {
            "named": [target.name for target in self.targets],
            "on the runner": [target.label for target in self.targets if isinstance(target, OnRunner)],
        }.items():
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"two targets are {what} {' and '.join(twice)}")
        if self.cluster is None and (on_nodes := [one.name for one in self.targets if isinstance(one, OnNode)]):
            raise ValueError(f"cluster is missing, HOST:PORT of the Ray cluster that {', '.join(on_nodes)} belongs to")
        return self

    def price(self, name: str) -> float | None:
        return next((target.price_per_hour for target in self.targets if target.name == name), None)

    def on_runner(self, label: str) -> OnRunner | None:
        return next((one for one in self.targets if isinstance(one, OnRunner) and one.label == label), None)

    def only(self, names: tuple[str, ...]) -> Self:
        """Return the fleet with these targets, or with all if none is named."""
        known = [target.name for target in self.targets]
        for name in names:
            if name not in known:
                raise EnginewrightError(f"{FLEET} has no target '{name}'{suggestion(name, known)}")
        return self.model_copy(update={"targets": tuple(one for one in self.targets if one.name in (names or known))})


def _sentence(error: ErrorDetails) -> str:
    place = ".".join(str(part) for part in error["loc"] if part not in KINDS) or "the file"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return f"{place} is missing"
    return f"{place}: {error['msg'][0].lower()}{error['msg'][1:]}, got {error['input']!r}"

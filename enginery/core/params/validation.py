"""The section `validation`."""

from typing import ClassVar

from pydantic import Field

from enginery.core.params.section import Section


class ValidationParams(Section):
    place: ClassVar[str] = "validation"

    spot_samples: int = Field(ge=1)
